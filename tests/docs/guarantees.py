#!/usr/bin/env python3
"""Compares docs/guarantees.md with the code and the tests.

1. Every promise that the code or a test names (JOB-1, SHM-2, ...) is defined on the page, once.
2. Every promise of the page is named by at least one test.
3. Each file that the page names for a promise exists; each that shows the promise names it, and one
   that keeps it does, unless the page says "not cite the name".
4. Each Python test (`test_...`) that the page names exists.

A promise is defined by a heading `### NAME`; the files that keep it and show it follow as lines
that begin with "Kept in" and "Shown by". Prints what is wrong; exit code 1 if anything is.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/guarantees.md"
FAMILIES = ("JOB GEN LEAD LOCK STATE RESTORE ENGINE BACKEND PREPARE MIX RING CHECKPOINT PEER COLLECTIVE SHM "
            "STREAM CONNECTION ACTOR FILE SECRET")
NAME = re.compile(r"\b(?:" + FAMILIES.replace(" ", "|") + r")-\d+\b")
FLOORS = ("runtime", "model", "transport", "tools", "actors", "app", "tests")
FILE = re.compile(r"`((?:" + "|".join(FLOORS) + r")/[\w./-]+)`")
PYTHON_TEST = re.compile(r"`(test_\w+)`")


def citations():
    """Name -> the files that name it, without this test."""
    command = ["git", "-c", "safe.directory=*", "ls-files", *FLOORS]
    found = {}
    for file in subprocess.check_output(command, cwd=ROOT, text=True).split():
        path = ROOT / file
        if file.startswith("tests/docs/") or not path.is_file():
            continue
        for name in NAME.findall(path.read_text(errors="replace")):
            found.setdefault(name, set()).add(file)
    return found


def sections(lines, problems):
    """Name -> its text on the page."""
    found, current = {}, None
    for line in lines:
        if line.startswith("#"):
            heading = re.match(r"### (\S+)$", line)
            current = heading[1] if heading and NAME.fullmatch(heading[1]) else None
            if current in found:
                problems.append(f"{PAGE} defines {current} twice")
            if current:
                found[current] = ""
        elif current:
            found[current] += line + "\n"
    return found


def check_section(name, text, cited, problems):
    if not text.strip():
        problems.append(f"{PAGE} does not say what {name} promises")
    parts = {}
    for paragraph in text.strip().split("\n\n"):
        for start in ("Kept in", "Shown by"):
            if paragraph.startswith(start):
                parts[start] = FILE.findall(paragraph)
    for start in ("Kept in", "Shown by"):
        if not parts.get(start):
            problems.append(f"{PAGE}: {name} has no files in a paragraph that begins with \"{start}\"")
    for file in FILE.findall(text):
        if not (ROOT / file).exists():
            problems.append(f"{PAGE}: {name}: {file} does not exist")
    for file in parts.get("Shown by", []):
        if file not in cited:
            problems.append(f"{PAGE}: {name}: {file} shows it and does not name it")
    if "not cite the name" not in text and not cited & set(parts.get("Kept in", [])):
        problems.append(f"{PAGE}: {name}: none of the files that keep it names it")


def main():
    problems = []
    page = (ROOT / PAGE).read_text()
    defined, cited = sections(page.splitlines(), problems), citations()
    for name in sorted(cited.keys() - defined.keys()):
        problems.append(f"{name} is named by {', '.join(sorted(cited[name]))}, "
                        f"and {PAGE} does not define it")
    for name, text in defined.items():
        files = cited.get(name, set())
        check_section(name, text, files, problems)
        if not any(file.startswith("tests/") for file in files):
            problems.append(f"{name} is named by no test")
    python = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    for test in sorted(set(PYTHON_TEST.findall(page))):
        if not re.search(rf"^ *def {test}\(", python, re.MULTILINE) and \
                not list((ROOT / "tests").rglob(f"{test}.py")):
            problems.append(f"{PAGE}: there is no Python test {test}")
    print("\n".join(problems) or f"{len(defined)} promises, each defined and named by a test")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
