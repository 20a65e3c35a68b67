#!/usr/bin/env bash
# Tests the two commands of the README on an empty machine: a new Debian 12 root with only git, bash and CA certificates.
# Clones the repository's HEAD into it and runs `./simplescale train configs/quickstart.toml` and, with --test,
# `./simplescale test`. Both must succeed. Prints how long every part took.
#
#   tests/setup/clean_debian.sh [--max-steps N] [--test] [--root FOLDER] [--mirror URL]
#   ./simplescale test -C Setup -L setup          the same from ctest; takes half an hour and does not run by default
#
#   --max-steps N   a shorter training
#   --test          also ./simplescale test
#   --root FOLDER   keeps the root in FOLDER, and continues with an existing one
#
# Needs root, debootstrap, and 16 GB in /var/tmp (or $TMPDIR); exits 77 with the reason without them. Everything runs in
# separate mount and process namespaces, so nothing stays mounted or running however the script ends. All its files are
# removed. The root uses the host's name servers, CA certificates, proxies, apt sources and pip index.
# shellcheck disable=SC2016  # scripts that run inside the root
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root="" keep="" max_steps="" with_test="" mirror=http://deb.debian.org/debian
while (($#)); do
  case $1 in
    --root) root=$2 keep=yes; shift 2 ;;
    --max-steps) max_steps=$2; shift 2 ;;
    --mirror) mirror=$2; shift 2 ;;
    --test) with_test=yes; shift ;;
    *) echo "unknown option $1; the head of $0 names them" >&2; exit 64 ;;
  esac
done

say() { printf '\n[clean_debian] %s\n' "$*"; }
skip() { say "SKIPPED: $*"; exit 77; }
((EUID == 0)) || skip "needs root"
command -v debootstrap >/dev/null || skip "no debootstrap; apt-get install debootstrap"
unshare --mount --pid --fork true 2>/dev/null || skip "no mount and process namespaces here"

inside=
finish() {
  [[ -z $inside ]] || { kill -9 "$inside" 2>/dev/null && wait "$inside" 2>/dev/null; } || true
  [[ -n $keep || -z $root ]] || rm -rf --one-file-system "$root"
}
trap finish EXIT
trap 'exit 130' INT TERM
[[ -n $root ]] || root=$(mktemp -d "${TMPDIR:-/var/tmp}/simplescale-clean-XXXXXX")
mkdir -p "$root"
chmod 755 "$root"  # the user nobody must be able to enter
root=$(cd "$root" && pwd)

report=()
# part NAME COMMAND...: runs the command and records its time for the table at the end.
part() {
  local name=$1 begin=$SECONDS
  shift
  say "$name"
  "$@"
  report+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$name")")
}

make_root() {
  [[ ! -e $root/etc/debian_version ]] || return 0
  debootstrap --variant=minbase --include=git,bash,ca-certificates bookworm "$root" "$mirror" | tail -n 1
}

# Copies this machine's settings for reaching the package registries. The repository does not know them.
copy_network_settings() {
  local file
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  for file in /etc/ssl/certs/ca-certificates.crt /etc/apt/sources.list.d/debian.sources /etc/pip.conf; do
    [[ ! -e $file ]] || cp -L "$file" "$root$file"
  done
  [[ ! -e /etc/apt/sources.list.d/debian.sources ]] || rm -f "$root/etc/apt/sources.list"
  apt-config dump | grep -iE '^Acquire::(.*proxy|.*cainfo|check-valid-until|check-date)' \
    >"$root/etc/apt/apt.conf.d/99-of-the-host" || true
}

clone() {
  local git=(git -c safe.directory='*')
  rm -rf "$root/root/simplescale"
  "${git[@]}" clone -q --no-hardlinks "$repository" "$root/root/simplescale"
  "${git[@]}" -C "$root/root/simplescale" checkout -q --detach "$("${git[@]}" -C "$repository" rev-parse HEAD)"
}

# enter USER SCRIPT: runs the script inside the root with the environment of a login.
enter() {
  local name variables=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE PIP_CERT PIP_INDEX_URL \
    PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT SIMPLESCALE_JOBS; do
    [[ -z ${!name:-} ]] || variables+=("$name=${!name}")
  done
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount --bind "$1" "$1"  # a mount of its own, as / is on a machine
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/dev/shm"
    mount --rbind /sys "$1/sys"
    chroot --userspec="$2" "$1" "${@:3}"' \
    enter "$root" "$1" env -i --default-signal HOME=/root LANG=C.UTF-8 TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" \
    bash -c "cd /root/simplescale && $2" &
  inside=$!
  local code=0
  wait "$inside" || code=$?
  inside=
  return $code
}

# Without root and sudo the wrapper must name the missing packages and write nothing.
refuses_without_root() {
  local code=0
  chmod 755 "$root/root"
  enter nobody './simplescale train configs/quickstart.toml' 2>"$root/refusal" || code=$?
  cat "$root/refusal"
  ((code == 1)) && grep -q 'apt-get install .*g++ .*libcaf-dev' "$root/refusal" && [[ ! -e $root/root/simplescale/.deps ]]
}

# Measures how long the wrapper takes before the program starts. The limit allows for busy machines.
measure_second_start() {
  enter root '
    program=build/release/bin/simplescale
    measure() { local begin=${EPOCHREALTIME/./} i; for i in {1..10}; do "$@" >/dev/null; done; echo $(((${EPOCHREALTIME/./} - begin) / 10000)); }
    ./simplescale --version
    wrapped=$(measure ./simplescale --version) alone=$(measure "$program" --version)
    echo "second start: $wrapped ms, of which set-up takes $((wrapped - alone)) ms (aim: under 100)"
    du -sh .deps build | sed "s/^/size: /"
    ((wrapped - alone < 500))'
}

part "debootstrap" make_root
copy_network_settings
part "git clone" clone
[[ -e $root/usr/bin/g++ ]] || part "refusal without root" refuses_without_root
part "first ./simplescale train configs/quickstart.toml" \
  enter root "./simplescale train configs/quickstart.toml ${max_steps:+--train.max_steps=$max_steps}"
part "second starts" measure_second_start
[[ -z $with_test ]] || part "first ./simplescale test" enter root './simplescale test'

say "passed"
printf '%s\n' "${report[@]}"
