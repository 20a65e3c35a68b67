#!/usr/bin/env python3
"""alone.py BUILD DEPS [SOURCE...]: checks that each source compiles without those of its unit (cmake/units.cmake), which
may hide a missing #include. Works in the folder BUILD. DEPS: where the wrapper put the Python wheels."""
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def compiles(entry):
    done = subprocess.run(entry["command"] + " -fsyntax-only", shell=True, cwd=entry["directory"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{entry['file']} does not compile alone:\n{done.stderr}", flush=True)
    return done.returncode == 0


def main():
    build, deps, *only = sys.argv[1:]
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCCACHE=OFF", "-DSIMPLESCALE_UNITS=OFF",
                    f"-DSIMPLESCALE_DEPS={deps}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "protocol"], check=True, stdout=subprocess.DEVNULL)
    sources = {entry["file"]: entry for entry in json.loads((Path(build) / "compile_commands.json").read_text())
               if entry["file"].endswith(".cpp") and (not only or entry["file"] in map(os.path.abspath, only))}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compiles, sources.values()))
    print(f"{len(results)} sources, {results.count(False)} do not compile alone")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
