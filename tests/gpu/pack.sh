#!/usr/bin/env bash
# Packs the GPU checklist for a machine that has an NVIDIA driver, a Python with torch of our version, and glibc 2.36 or
# newer, but neither our dependencies nor a compiler: programs, GPU libraries and tests, the PyTorch baseline, and all
# shared libraries that are neither glibc's nor come with torch. Checks that nothing else is needed.
#   tests/gpu/pack.sh [--build build/release] [--out gpu-pack]     makes the folder and gpu-pack.tar.gz
#   tar xzf gpu-pack.tar.gz && gpu-pack/run.sh                     on that machine; options as checklist.sh
set -euo pipefail
root=$(readlink -f "$(dirname "$0")/../..") build= out=gpu-pack
while [[ $# -gt 1 ]]; do
  case $1 in
    --build) build=$2 ;;
    --out) out=$2 ;;
    *) break ;;
  esac
  shift 2
done
[[ $# -eq 0 ]] || { echo "usage: pack.sh [--build FOLDER] [--out FOLDER]" >&2; exit 2; }
bin=${build:-$root/build/release}/bin
limit_mib=60

# glibc belongs to its machine, as the driver does.
glibc='^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nss_[a-z]+|cuda))\.so'
torch=$(python3 -B "$root/tests/gpu/checklist.py" --libraries)
in_torch() { local folder; for folder in ${torch//:/ }; do [[ $(readlink -f "$1") == "$(readlink -f "$folder")"/* ]] && return 0; done; return 1; }
# "name path" of each library that a file needs; the path is "not" if it is not found.
needs() { LD_LIBRARY_PATH=$1 ldd "$2" | awk '$2 == "=>" { print $1, $3 }' | grep -vE "$glibc" || true; }

rm -rf "$out" "$out.tar.gz"
mkdir -p "$out/build/release/bin" "$out/lib" "$out/tests/gpu" "$out/tests/bench"
for file in simplescale simplescale-compute libsimplescale_cuda.so libsimplescale_nccl.so test_gpu gpu_bench; do
  [[ -e $bin/$file ]] || { echo "$bin has no $file: ./simplescale build, and ninja -C the build folder $file" >&2; exit 1; }
  cp "$bin/$file" "$out/build/release/bin"
done
for file in "$out"/build/release/bin/*; do needs "$torch" "$file"; done | sort -u | while read -r name path; do
  [[ $path != not ]] || { echo "$name, which the programs need, is not found" >&2; exit 1; }
  in_torch "$path" || cp -L "$path" "$out/lib/$name"
done
strip --strip-unneeded "$out"/build/release/bin/* "$out"/lib/*.so*
cp "$root"/tests/gpu/{checklist.sh,checklist.py,machine.py,processes.py,products.py,kernel_trace.py} "$out/tests/gpu"
cp -rL "$root/tests/bench/peers" "$out/tests/bench/peers"
git -C "$root" -c safe.directory='*' describe --always --dirty >"$out/COMMIT"
grep ^torch== "$root/cmake/wheels.lock" >"$out/TORCH"
cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# The GPU checklist with packed programs; options as tests/gpu/checklist.sh.
pack=$(readlink -f "$(dirname "$0")")
torch=$(python3 -B "$pack/tests/gpu/checklist.py" --libraries) || exit 1
export SIMPLESCALE_LIBRARIES=$pack/lib:$torch
exec "$pack/tests/gpu/checklist.sh" "$@"
RUN
chmod +x "$out/run.sh"

# Everything resolves within the pack, torch and glibc.
pack=$(readlink -f "$out")
wrong=$(for file in "$out"/build/release/bin/* "$out"/lib/*.so*; do
  needs "$pack/lib:$torch" "$file" | while read -r name path; do
    [[ $path == "$pack"/* ]] || { [[ $path != not ]] && in_torch "$path"; } || echo "$(basename "$file") takes $name from $path"
  done
done)
[[ -z $wrong ]] || { echo "$wrong" >&2; exit 1; }
tar -C "$(dirname "$pack")" -c "$(basename "$pack")" | gzip -1 >"$out.tar.gz"
mib=$(($(stat -c %s "$out.tar.gz") >> 20))
echo "$out.tar.gz: $mib MiB; $(ls "$out/lib" | wc -l) libraries"
[[ $mib -lt $limit_mib ]] || { echo "$out.tar.gz is larger than $limit_mib MiB" >&2; exit 1; }
