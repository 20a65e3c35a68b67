#!/usr/bin/env python3
"""Checks the dependencies between folders, from the #include lines of every file.

1. A floor includes only the floors below it: runtime < model, transport, tools < actors < app.
2. model, transport and tools do not include each other; of the actors only trainer includes model, and none
   includes tools.
3. The folders of a floor form no cycle.
4. Programs print by app/terminal.hpp alone.

The links in cmake/targets.cmake decide which rooms of runtime/ may include each other.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {"runtime": 0, "model": 1, "transport": 1, "tools": 1, "actors": 2, "app": 3}
INCLUDE = re.compile(r'^#include "([a-z_]+/[^"]+)"', re.MULTILINE)


def folder_of(path):
    """The room of a file: its floor and the folder below it. A file directly on a floor is a room of its own."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else path.rsplit(".", 1)[0]


def edges():
    """Every (file, included file) of the program's own sources."""
    command = ["git", "-c", "safe.directory=*", "ls-files", *FLOORS]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).split():
        if name.endswith((".cpp", ".hpp", ".inl", ".cu", ".cuh")):
            for target in INCLUDE.findall((ROOT / name).read_text()):
                if target.split("/")[0] in FLOORS:
                    yield name, target


def wrong_floor(name, target):
    """What is wrong with one include, or None."""
    source_floor, target_floor = name.split("/")[0], target.split("/")[0]
    if source_floor == target_floor:
        return None
    if FLOORS[target_floor] >= FLOORS[source_floor]:
        return f"{target_floor} is not below {source_floor}"
    if target_floor == "model" and source_floor == "actors" and not name.startswith("actors/trainer/"):
        return "only actors/trainer may include model"
    if target_floor == "tools" and source_floor == "actors":
        return "only app may include tools"
    return None


def find_cycle(graph):
    """A list of folders that include each other in a circle, or None."""
    done, path = set(), []

    def visit(folder):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder in done:
            return None
        path.append(folder)
        for target in sorted(graph.get(folder, ())):
            cycle = visit(target)
            if cycle:
                return cycle
        path.pop()
        done.add(folder)
        return None

    for folder in sorted(graph):
        cycle = visit(folder)
        if cycle:
            return cycle
    return None


def direct_prints():
    """Text that a program writes to a terminal without app/terminal.hpp, which filters it."""
    names = subprocess.check_output(["git", "-c", "safe.directory=*", "ls-files", "app"], cwd=ROOT, text=True).split()
    found = []
    for name in names:
        if not name.endswith(".cpp") or name == "app/terminal.cpp":
            continue
        for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
            if re.search(r"\bf?(printf|puts|putc|write)\(.*(stdout|stderr)|std::(printf|puts|cout|cerr)", line):
                found.append(f"{name}:{number} prints by itself: use app/terminal.hpp, which filters control characters")
    return found


def main():
    problems, graph = [], {}
    for name, target in edges():
        why = wrong_floor(name, target)
        if why:
            problems.append(f"{name} includes {target}: {why}")
        source, other = folder_of(name), folder_of(target)
        if source != other:
            graph.setdefault(source, set()).add(other)
    problems += direct_prints()
    cycle = find_cycle(graph)
    if cycle:
        problems.append("these folders include each other: " + " -> ".join(cycle))
    if not graph:
        problems.append("no include was found: is this the root of the repository?")
    print("\n".join(problems) or f"{len(graph)} folders, no cycle")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
