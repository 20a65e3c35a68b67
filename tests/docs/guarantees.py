#!/usr/bin/env python3
"""Compares the promises of docs/guarantees.md with the code and the tests, and lists who keeps them.

    tests/docs/guarantees.py [--write]

1. Every promise that the code or a test names (JOB-1, SHM-2, ...) is defined on the page, once, by a
   heading `### NAME`.
2. Every promise of the page is named by code that keeps it and by a test that shows it.
3. docs/guarantees-kept.md lists these files; --write makes it anew.
4. Each Python test (`test_...`) that the page names exists.

Prints what is wrong; exit code 1 if anything is.
"""
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE, KEPT = "docs/guarantees.md", "docs/guarantees-kept.md"
FAMILIES = ("JOB BALANCE GEN LEAD LOCK STATE RESTORE ENGINE BACKEND SIGNATURE PREPARE MIX PACK RING CHECKPOINT PEER COLLECTIVE SHM "
            "STREAM CONNECTION ACTOR FILE SECRET")
NAME = re.compile(r"\b(?:" + FAMILIES.replace(" ", "|") + r")-\d+\b")
FLOORS = ("runtime", "model", "transport", "tools", "actors", "app", "tests")
NO_CITATIONS = ("tests/docs/", "tests/mutants.txt")
PYTHON_TEST = re.compile(r"`(test_\w+)`")
COLUMNS_MAX = 100


def citations():
    """Name -> the files that name it, in order."""
    command = ["git", "-c", "safe.directory=*", "ls-files", *FLOORS]
    found = {}
    for file in sorted(subprocess.check_output(command, cwd=ROOT, text=True).split()):
        path = ROOT / file
        if not file.startswith(NO_CITATIONS) and path.is_file():
            for name in set(NAME.findall(path.read_text(errors="replace"))):
                found.setdefault(name, []).append(file)
    return found


def promises(lines, problems):
    """The names that the page defines, in its order."""
    defined = {}
    current = None
    for line in lines:
        if line.startswith("#"):
            heading = re.match(r"### (\S+)$", line)
            current = heading[1] if heading and NAME.fullmatch(heading[1]) else None
            if current in defined:
                problems.append(f"{PAGE} defines {current} twice")
            if current:
                defined[current] = ""
        elif current:
            defined[current] += line.strip()
    problems.extend(f"{PAGE} does not say what {name} promises" for name, text in defined.items() if not text)
    return list(defined)


def kept_page(defined, cited):
    """The text of docs/guarantees-kept.md."""
    def files(title, chosen):
        text = f"{title}: " + ", ".join(f"`{file}`" for file in chosen) + "."
        return textwrap.fill(text, COLUMNS_MAX, break_long_words=False, break_on_hyphens=False)

    parts = ["# Where each promise is kept",
             textwrap.fill("Each promise of [guarantees.md](guarantees.md), the files that keep it, and the tests that show it. "
                           "`tests/docs/guarantees.py --write` makes this page from the names in these files. "
                           "`build/release/bin/test_model -tc='*ENGINE-4*'` runs the unit tests of one promise.", COLUMNS_MAX,
                           break_long_words=False, break_on_hyphens=False)]
    for name in defined:
        all_files = cited.get(name, [])
        parts += [f"## {name}",
                  files("Kept in", [file for file in all_files if not file.startswith("tests/")]),
                  files("Shown by", [file for file in all_files if file.startswith("tests/")])]
    return "\n\n".join(parts) + "\n"


def main():
    problems = []
    page = (ROOT / PAGE).read_text()
    defined, cited = promises(page.splitlines(), problems), citations()
    for name in sorted(cited.keys() - set(defined)):
        problems.append(f"{name} is named by {', '.join(cited[name])}, and {PAGE} does not define it")
    for name in defined:
        tests = [file for file in cited.get(name, []) if file.startswith("tests/")]
        if not tests:
            problems.append(f"{name} is named by no test")
        if len(tests) == len(cited.get(name, [])):
            problems.append(f"{name} is named by no code that keeps it")
    text = kept_page(defined, cited)
    if "--write" in sys.argv[1:]:
        (ROOT / KEPT).write_text(text)
    elif not (ROOT / KEPT).is_file() or (ROOT / KEPT).read_text() != text:
        problems.append(f"{KEPT} is out of date: tests/docs/guarantees.py --write makes it")
    python = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    for test in sorted(set(PYTHON_TEST.findall(page))):
        if not re.search(rf"^ *def {test}\(", python, re.MULTILINE) and \
                not list((ROOT / "tests").rglob(f"{test}.py")):
            problems.append(f"{PAGE}: there is no Python test {test}")
    print("\n".join(problems) or f"{len(defined)} promises, each named by its code and by a test")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
