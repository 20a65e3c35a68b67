#!/usr/bin/env python3
"""Checks cmake/wheels.lock: every Python wheel that ./simplescale installs has an exact version and a hash there.

    wheels.py            checks the list against the packages that ./simplescale names
    wheels.py --write    makes the list again, with a new pip in a temporary environment (downloads nothing large)

A line of the list is a requirement of pip with its hash, and the set it belongs to: build, parquet, cuda or test. The wheels are those
for CPython 3.11 on x86-64, the Python of Debian 12.
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "cmake/wheels.lock"
LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64}) # (build|parquet|cuda|test)$")
SETS = ("build", "parquet", "cuda", "test")
HEADERS = ("nvidia-cudnn-frontend",)  # the build reads their headers only: what their programs need is not installed


def named():
    """The packages that ./simplescale names, by set."""
    text = (ROOT / "simplescale").read_text()
    found = {}
    for name in SETS:
        words = re.search(rf"^python_{name}=\((.*)\)$", text, re.MULTILINE).group(1).split()
        found[name] = [word.strip('"') for word in words]
    return found


def normal(name):
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


def write():
    locked, wanted = {}, {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/venv/bin/python"
        subprocess.check_call([sys.executable, "-m", "venv", f"{folder}/venv"])
        subprocess.check_call([python, "-m", "pip", "install", "-q", "-U", "pip"])
        for name in SETS:
            for package in named()[name]:
                wanted[normal(package.partition("==")[0]) in HEADERS].append(package)
            for headers, packages in wanted.items():
                report = f"{folder}/{name}.json"
                subprocess.check_call([python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--only-binary=:all:",
                                       *(["--no-deps"] if headers else []), "--report", report, *packages])
                for item in json.loads(Path(report).read_text())["install"]:
                    package, hashes = item["metadata"], item["download_info"]["archive_info"]["hashes"]
                    locked.setdefault(package["name"], f"{package['name']}=={package['version']} --hash=sha256:{hashes['sha256']} # {name}")
    LOCK.write_text("".join(sorted((line + "\n" for line in locked.values()), key=str.lower)))


def check():
    wrong, locked = [], {}
    for number, line in enumerate(LOCK.read_text().splitlines(), 1):
        match = LINE.match(line)
        if not match:
            wrong.append(f"{LOCK.name}:{number}: not NAME==VERSION --hash=sha256:... # SET")
        elif normal(match[1]) in locked:
            wrong.append(f"{LOCK.name}:{number}: {match[1]} is listed twice")
        else:
            locked[normal(match[1])] = (match[2], match[4])
    order = {name: place for place, name in enumerate(SETS)}
    for name, packages in named().items():
        for package in packages:
            title, _, version = package.partition("==")
            known = locked.get(normal(title))
            if not known or known[0] != version or order[known[1]] > order[name]:
                wrong.append(f"simplescale: {package} is not in {LOCK.name}; run tests/setup/wheels.py --write")
    if "--require-hashes" not in (ROOT / "simplescale").read_text():
        wrong.append("simplescale: pip is called without --require-hashes")
    return wrong


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    problems = check()
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
