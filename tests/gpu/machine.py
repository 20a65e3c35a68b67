"""The machine that the checklist runs on: its driver and GPU, a Python with torch, room for states. No GPU needed.

Run as a program it asks the driver and prints a JSON object; the driver is loaded in that process only.
"""

import ctypes
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA = 13000  # of which our libraries are: 1000 x major + 10 x minor
OLDEST_GPU = 8  # major compute capability, kOldestGpuMajor in runtime/base/library.hpp
HINTS = {802: "start nvidia-fabricmanager, as root", 803: "the driver's library and its kernel module differ: reboot, or load the module again",
         999: "see the kernel's log (dmesg)"}
GIB = 2**30
STATES = 2.05 * 12  # bytes of shared memory for a parameter: two states in fp32, and padding
PLANES = GIB // 3  # of shared memory for all else: data planes, traces, token rings
CHECKPOINTS = 2.1 * 12  # bytes of disk for a parameter: the last checkpoint, and as much again that `train` asks for
# Presets that the speed parts may take, with the parameters of each, in the order of preference.
MODELS = [("tinyllama", 1.1e9, 32000), ("small", 0.135e9, 32000), ("mini", 17e6, 8192)]
ASKED = "SIMPLESCALE_CHECKLIST_SHM"  # set in the process that has a /dev/shm of its own


def ask_driver():
    """What the driver says of the first GPU. error: the driver's code and its name, if it offers no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": [-1, str(error)]}
    number, text, found = ctypes.c_int(), ctypes.create_string_buffer(256), {}
    cuda.cuDriverGetVersion(ctypes.byref(number))
    found["cuda"] = number.value
    device, bytes_, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_char_p()
    for call in (lambda: cuda.cuInit(0), lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
                 lambda: cuda.cuDeviceGetName(text, len(text), device), lambda: cuda.cuDeviceTotalMem_v2(ctypes.byref(bytes_), device)):
        if code := call():
            cuda.cuGetErrorName(code, ctypes.byref(name))
            return {**found, "error": [code, (name.value or b"?").decode()]}
    found |= {"name": text.value.decode(), "memory_mib": bytes_.value >> 20}
    for key, attribute in (("major", 75), ("minor", 76), ("compute_mode", 20), ("multiprocessors", 16)):  # CUdevice_attribute
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        found[key] = number.value
    return found


def driver():
    """ask_driver() in a process of its own, which a broken driver may hang."""
    try:
        out = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
        return json.loads(out.stdout)
    except subprocess.TimeoutExpired:
        return {"error": [-2, "cuInit() did not return within 60 s"]}
    except ValueError:
        return {"error": [-3, f"exit code {out.returncode}: {out.stderr[-300:]}"]}


def has_gpu(found):
    """False: there is no driver or no GPU, so there is nothing to test. True also if a GPU cannot be used."""
    return found.get("error", [0])[0] not in (-1, 100)  # CUDA_ERROR_NO_DEVICE


def problem(found):
    """Why our programs cannot use this GPU, and what to do; "" if they can."""
    version = lambda number: f"{number // 1000}.{number % 1000 // 10}"
    if 0 < found.get("cuda", 0) < CUDA:
        return f"the driver is for CUDA {version(found['cuda'])}, our libraries are of CUDA {version(CUDA)}: install driver 580 or newer, " \
               "or NVIDIA's package cuda-compat-13-0"
    if "error" in found:
        code, text = found["error"]
        return f"the driver does not offer its GPU: {text} ({code})" + (f": {HINTS[code]}" if code in HINTS else "")
    if found["major"] < OLDEST_GPU:
        return f"{found['name']} has compute capability {found['major']}.{found['minor']}; {OLDEST_GPU}.0 (A100) is the oldest that our kernels are built for"
    return ""


def ask_smi(*fields):
    """What nvidia-smi says of the first GPU, a text for each field; {} without it."""
    try:
        out = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0"],
                             capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(fields, out.stdout.strip().split(", "))) if out.returncode == 0 else {}


def facts():
    """Of the host; what cannot be read is left out."""
    shm = shutil.disk_usage("/dev/shm")
    return {"kernel": " ".join(os.uname()[i] for i in (0, 2)), "cores": len(os.sched_getaffinity(0)), "host_memory_gib": round(host_memory() / GIB, 1),
            "shm_free_gib": round(shm.free / GIB, 1), "root": os.geteuid() == 0,
            **ask_smi("driver_version", "compute_mode", "mig.mode.current", "memory.used", "power.limit", "clocks.max.sm", "clocks.max.mem", "ecc.mode.current")}


def host_memory():
    """Bytes, or the limit of the control group."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):
            pass
    return min(limits)


# ---- Python with torch ----

def torch_of(python):
    """The version of its torch, "" without torch or numpy. Does not import torch, which takes long on a cold disk."""
    code = "import importlib.metadata as m, importlib.util as u; print(m.version('torch') if u.find_spec('numpy') else '')"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20).stdout.strip().split("+")[0]
    except (OSError, subprocess.TimeoutExpired):
        return ""


def our_torch(root=ROOT):
    """The version that our libraries are linked with."""
    lock = root / "cmake/wheels.lock"
    text = lock.read_text() if lock.exists() else (root / "TORCH").read_text()  # pack.sh writes the second
    return next(line.split("==")[1].split()[0] for line in text.splitlines() if line.startswith("torch=="))


def find_python(version=""):
    """A Python with numpy and this torch, or any: ours, the caller's, one on PATH, or one of a virtual environment; None without."""
    named = [os.environ.get(k, "") + "/bin/python" for k in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(k)]
    found = [glob.glob(pattern) for pattern in ("/opt/*/bin/python3", "/opt/*/*/bin/python3", "/root/*/bin/python3", os.path.expanduser("~/*/bin/python3"),
                                                "/usr/bin/python3.*", "/usr/local/bin/python3*")]
    tried = [ROOT / ".deps/python/bin/python", *named, sys.executable, shutil.which("python3"), *sum(map(sorted, found), [])]
    known = dict.fromkeys(str(p) for p in tried if p and os.access(p, os.X_OK) and not str(p).endswith("-config"))
    return next((python for python in known if (torch := torch_of(python)) and version in ("", torch)), None)


def torch_libraries(python):
    """The folders of libtorch and of NVIDIA's libraries beside it, as in LD_LIBRARY_PATH."""
    code = "import glob, importlib.util as u, os; t = os.path.dirname(u.find_spec('torch').origin); " \
           "print(':'.join([t + '/lib', *sorted(glob.glob(os.path.dirname(t) + '/nvidia/*/lib'))]))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# ---- Room for the states ----

def choose_model(shm_free, memory, disk_free):
    """(preset, parameters, vocabulary, whether /dev/shm has room for the checkpoint, too), and why not the first; or None, and why."""
    why = ""
    for preset, parameters, vocab in MODELS:
        states, saved = STATES * parameters + PLANES, CHECKPOINTS * parameters
        in_memory = shm_free > saved and memory > 1.2 * (states + saved)
        if memory > 1.2 * states and (in_memory or disk_free > saved):
            return (preset, parameters, vocab, in_memory), why
        why = why or f"{preset} needs {1.2 * states / GIB:.1f} GiB of memory (this host has {memory / GIB:.1f}), and {saved / GIB:.1f} of " \
                     f"/dev/shm ({shm_free / GIB:.1f} are free) or of disk ({disk_free / GIB:.1f})"
    return None, why


def own_shared_memory(command):
    """`command` with a larger /dev/shm that only it sees, as root or by a user namespace; None if /dev/shm is large enough or the system refuses."""
    need = 2 * STATES * MODELS[0][1]
    size = int(min(need, 0.8 * host_memory()))
    if os.environ.get(ASKED) or shutil.disk_usage("/dev/shm").free > min(need, size) or not shutil.which("unshare"):
        return None
    inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c",
              f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm && exec \"$@\"", "sh"]
    try:
        if subprocess.run([*inside, "true"], capture_output=True, timeout=20).returncode == 0:
            return [*inside, *map(str, command)]
    except (OSError, subprocess.TimeoutExpired):
        pass
    return None


if __name__ == "__main__":
    print(json.dumps(ask_driver()))
