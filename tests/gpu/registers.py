#!/usr/bin/env python3
"""Registers, memory and spills of every CUDA kernel, as ptxas reports them for one architecture.

    tests/gpu/registers.py [--build build/release] [--arch 90]      or: ninja -C build/release gpu_registers

Compiles the kernels again, in the way of the build folder's compile_commands.json. The build itself
already fails on a spill.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_\w+'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                    r"(\d+) bytes spill loads.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?", re.DOTALL)


def command_for(entry, arch):
    """The compiler's command for one architecture, with ptxas's report, and without an output."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.endswith("nvcc")):]  # without ccache
    keep = [word for word in words if not word.startswith(("--generate-code", "-gencode", "-arch")) and word != "-c"]
    at = keep.index("-o")
    return [*keep[:at], "-o", "/dev/null", *keep[at + 2:], f"-arch=sm_{arch}", "-cubin", "-Xptxas=-v"]


def parse(report):
    """(mangled name, registers, bytes of static shared memory, of stack, of spills) of each kernel."""
    reports = re.split(r"(?=Compiling entry function)", report)
    found = filter(None, map(KERNEL.search, reports))
    return [(m[1], int(m[5]), int(m[6] or 0), int(m[2]), int(m[3]) + int(m[4])) for m in found]


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    a.add_argument("--arch", default="90")
    flags = a.parse_args()
    entries = json.loads((flags.build / "compile_commands.json").read_text())
    rows = []
    for entry in {e["file"]: e for e in entries if e["file"].endswith(".cu")}.values():
        done = subprocess.run(command_for(entry, flags.arch), cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{entry['file']}:\n{done.stderr}")
        rows += parse(done.stdout + done.stderr)
    if not rows:
        sys.exit("ptxas reported no kernel")
    names = subprocess.run(["c++filt"], input="\n".join(row[0] for row in rows), capture_output=True, text=True, check=True)
    short = [re.sub(r"simplescale::(cuda::|nccl::)?|_GLOBAL__N__\w+::|\(anonymous namespace\)::|^void |\(.*", "", name) for name in names.stdout.splitlines()]
    print(f"{'kernel':56}{'registers':>10}{'shared':>8}{'stack':>7}{'spills':>8}   sm_{flags.arch}")
    for name, row in sorted(zip(short, rows), key=lambda each: -each[1][1]):
        print(f"{name[:55]:56}{row[1]:10}{row[2]:8}{row[3]:7}{row[4]:8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
