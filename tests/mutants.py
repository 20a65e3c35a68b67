#!/usr/bin/env python3
"""Tests the tests: plants the small mistakes of mutants.txt, one after the other, and prints which
of them no test finds. By hand; docs/developing.md#test-the-tests explains the use.

It works in a copy of the source tree (build/mutants/tree), which has its own build folder, so the
user's sources are only read. Results are kept in build/mutants/results.jsonl: an interrupted run
continues where it ended. A mutant whose text is no longer in its file is reported and left out.
"""
import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants.txt"
LEAST = 150  # mutants in the list
BUILD_TIMEOUT_S = 900
ARROW, REASON = " ==> ", " ## "


@dataclass
class Mutant:
    line: int  # in mutants.txt
    file: str
    old: str
    new: str
    commands: list  # each: a test program and its arguments
    reason: str  # why no test can find it; "" if a test should

    @property
    def key(self):
        text = json.dumps([self.file, self.old, self.new, self.commands])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self):
        return f"{self.file}: {show(self.old)}{ARROW}{show(self.new)}"


def show(text):
    return text.replace("\n", "\\n")


def log_text(path):
    return path.read_text(errors="replace")  # a test may print any bytes


def unescaped(text):
    """The list writes a line's end as \\n, and a backslash before n as \\\\n."""
    return re.sub(r"\\\\n|\\n", lambda m: "\n" if m[0] == "\\n" else "\\n", text)


def read_list():
    """The mutants, and what is wrong with the list."""
    mutants, wrong = [], []
    file, commands = "", []
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if heading := re.fullmatch(r"\[([\w.-]+/[\w./-]+)\] (.+)", line):
            file = heading[1]
            commands = [shlex.split(command) for command in heading[2].split(" + ")]
            continue
        body, _, reason = line.partition(REASON)
        old, arrow, new = (body + " ").partition(ARROW)
        if not arrow or not file:
            wrong.append(f"line {number}: neither '[FILE] TESTS' nor 'OLD ==> NEW'")
            continue
        mutants.append(Mutant(number, file, unescaped(old), unescaped(new[:-1]), commands,
                              reason.strip()))
    return mutants, wrong


def check(mutants):
    """The mutants that can be planted, and what is wrong with the others; without building anything."""
    good, wrong, seen = [], [], set()
    targets = (ROOT / "tests/CMakeLists.txt").read_text()
    for m in mutants:
        found = len(wrong)

        def complain(what):
            wrong.append(f"line {m.line}: {m}: {what}")
        path = ROOT / m.file
        if not path.is_file():
            complain("there is no such file")
            continue
        count = path.read_text().count(m.old)
        if count != 1:
            complain(f"the old text occurs {count} times, not once")
        if m.old == m.new:
            complain("old and new text are equal")
        if (m.file, m.old, m.new) in seen:
            complain("the list has it twice")
        seen.add((m.file, m.old, m.new))
        for program, *_ in m.commands:
            name = program.removeprefix("test_")
            if not re.search(rf"\b{re.escape(name)}\b", targets):
                complain(f"tests/CMakeLists.txt has no {program}")
        if len(wrong) == found:
            good.append(m)
    if len(mutants) < LEAST:
        wrong.append(f"{len(mutants)} mutants; at least {LEAST} are wanted")
    return good, wrong


class Scratch:
    """A copy of the source tree, and its build folder."""

    def __init__(self, folder):
        self.folder = folder
        self.tree = folder / "tree"
        self.build = self.tree / "build/release"  # as in the original, so that ccache knows it
        self.planted = None  # (path, its original text)

    def update(self):
        """Copies what differs from the user's tree, uncommitted changes included."""
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                   "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True,
                                text=True).stdout.split("\0")
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        for name in wanted:
            source, copy = ROOT / name, self.tree / name
            if copy.is_file() and copy.read_bytes() == source.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
        for folder, folders, names in os.walk(self.tree):
            if Path(folder) == self.tree and "build" in folders:
                folders.remove("build")
            for name in names:
                path = Path(folder) / name
                if str(path.relative_to(self.tree)) not in wanted:
                    path.unlink()
        self.run_to_end(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja",
                         "-DCMAKE_BUILD_TYPE=Release", f"-DSIMPLESCALE_DEPS={ROOT / '.deps'}"],
                        BUILD_TIMEOUT_S, must=True)

    def plant(self, mutant):
        self.restore()
        path = self.tree / mutant.file
        text = path.read_text()
        self.planted = (path, text)
        path.write_text(text.replace(mutant.old, mutant.new))

    def restore(self):
        if self.planted:
            self.planted[0].write_text(self.planted[1])  # newer than its object, so it is rebuilt
        self.planted = None

    def compile(self, program):
        jobs = os.environ.get("SIMPLESCALE_JOBS")
        return self.run_to_end(["ninja", "-C", self.build, *(["-j" + jobs] if jobs else []),
                                program], BUILD_TIMEOUT_S)

    def test(self, command, timeout_s):
        program, *arguments = command
        if program.startswith("test_"):
            arguments = arguments + ["--abort-after=1"]
        return self.run_to_end([self.build / "bin" / program, *arguments], timeout_s)

    def run_to_end(self, command, timeout_s, must=False):
        """The exit code, or None if it did not end in time. Its output goes to log.txt."""
        environment = os.environ | {"CCACHE_BASEDIR": str(self.tree), "CCACHE_NOHASHDIR": "1"}
        log = self.folder / "log.txt"
        with open(log, "w") as out:
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=out, env=environment,
                                     start_new_session=True)
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:  # also what it has started
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                child.wait()
        if must and code != 0:
            sys.exit(f"{shlex.join(map(str, command))} failed:\n{log_text(log)[-4000:]}")
        return code


def baseline(scratch, mutants):
    """Builds and runs each command without a mutant. Returns the limit of each in seconds."""
    limits = {}
    for command in [c for m in mutants for c in m.commands]:
        name = shlex.join(command)
        if name in limits:
            continue
        print(f"without a mutant: {name}", end=" ", flush=True)
        code = scratch.compile(command[0])
        if code != 0:
            why = f"was not built within {BUILD_TIMEOUT_S} s" if code is None else "does not build"
            sys.exit(f"{command[0]} {why}; see {scratch.folder}/log.txt")
        begun = time.monotonic()
        if scratch.test(command, 1200) != 0:
            sys.exit(f"{name} fails without a mutant; see {scratch.folder}/log.txt")
        seconds = time.monotonic() - begun
        cases = re.search(r"test cases:\s*(\d+)", log_text(scratch.folder / "log.txt"))
        if cases and int(cases[1]) == 0:
            sys.exit(f"{name} runs no test")
        print(f"passes in {seconds:.0f} s", flush=True)
        limits[name] = 30 + 5 * seconds
    return limits


def attempt(scratch, mutant, limits):
    """(outcome, by): found, hangs, missed or no build; the command that found it."""
    scratch.plant(mutant)
    for command in mutant.commands:
        if scratch.compile(command[0]) != 0:
            return "no build", ""
        code = scratch.test(command, limits[shlex.join(command)])
        if code != 0:
            return ("hangs" if code is None else "found"), shlex.join(command)
    return "missed", ""


def report(mutants, results):
    """Prints the table and the mutants that no test finds. True if nothing is left to do."""
    print("\n{:<46}{:>8}{:>7}{:>8}{:>11}".format("file", "mutants", "found", "missed", "explained"))
    total = Counter()
    for file in dict.fromkeys(m.file for m in mutants):
        row = Counter()
        for m in mutants:
            if m.file != file or m.key not in results:
                continue
            outcome = results[m.key]["outcome"]
            kind = "found" if outcome in ("found", "hangs") else outcome
            row["explained" if kind == "missed" and m.reason else kind] += 1
            row["all"] += 1
        total += row
        print(f"{file:<46}{row['all']:>8}{row['found']:>7}{row['missed']:>8}{row['explained']:>11}")
    share = 100 * total["found"] / max(total["all"], 1)
    print(f"{'all':<46}{total['all']:>8}{total['found']:>7}{total['missed']:>8}"
          f"{total['explained']:>11}   {share:.1f} % found")
    for title, wanted in (
            ("No test finds", lambda m, o: o == "missed" and not m.reason),
            ("Explained in the list", lambda m, o: o == "missed" and m.reason),
            ("Does not build, correct the list", lambda m, o: o == "no build"),
            ("Found, remove the explanation", lambda m, o: m.reason and o in ("found", "hangs"))):
        lines = [f"  line {m.line}: {m}" + (f"\n      {m.reason}" if m.reason else "")
                 for m in mutants if m.key in results and wanted(m, results[m.key]["outcome"])]
        if lines:
            print(f"\n{title}:\n" + "\n".join(lines))
    left = sum(m.key not in results for m in mutants)
    if left:
        print(f"\n{left} mutants of the list have not been tried.")
    return total["missed"] + total["no build"] + left == 0


def read_results(path):
    results = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                result = json.loads(line)
                results[result["key"]] = result
            except (ValueError, KeyError):
                pass  # half a line, from an interruption
    return results


def write_results(path, mutants, results):
    """In the order of the list, without mutants that are no longer in it."""
    kept = [json.dumps(results[m.key]) for m in mutants if m.key in results]
    path.write_text("".join(line + "\n" for line in kept))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="only check the list; builds nothing")
    parser.add_argument("--only", metavar="TEXT", action="append",
                        help="try again the mutants with TEXT in file, old or new; repeatable")
    parser.add_argument("--missed", action="store_true",
                        help="try again what no test found, with --only: of those mutants")
    parser.add_argument("--sample", type=int, metavar="N",
                        help="only N mutants, spread evenly over the list")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--report", action="store_true", help="only print the results so far")
    parser.add_argument("--minutes", type=float, help="begin no mutant after this time")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants")
    args = parser.parse_args()

    mutants, wrong = read_list()
    mutants, misplaced = check(mutants)
    wrong += misplaced
    if wrong:
        print("tests/mutants.txt:\n" + "\n".join(wrong), file=sys.stderr)
    if args.check:
        print(f"{len(mutants)} mutants, each in its place")
        sys.exit(1 if wrong else 0)
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "results.jsonl"
    results = {} if args.fresh else read_results(path)
    write_results(path, mutants, results)
    if args.report:
        sys.exit(0 if report(mutants, results) else 1)
    if args.sample:
        count = min(args.sample, len(mutants))
        mutants = [mutants[i * len(mutants) // count] for i in range(count)]
    todo = [m for m in mutants
            if not args.only or any(text in str(m) for text in args.only)]
    if args.missed or not args.only:
        again = ("missed", "no build") if args.missed else ()
        todo = [m for m in todo if m.key not in results or results[m.key]["outcome"] in again]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what run_to_end() has started
    scratch = Scratch(args.folder.resolve())  # ccache wants an absolute path
    scratch.update()
    limits = baseline(scratch, todo)
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    try:
        for index, m in enumerate(todo, 1):
            if time.monotonic() > end:
                break
            begun = time.monotonic()
            outcome, by = attempt(scratch, m, limits)
            seconds = time.monotonic() - begun
            results[m.key] = {"key": m.key, "outcome": outcome, "by": by, "file": m.file}
            with open(path, "a") as out:
                out.write(json.dumps(results[m.key]) + "\n")
            print(f"[{index}/{len(todo)}] {outcome:<8} {seconds:4.0f} s  line {m.line}: {m}",
                  flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted; the next run continues here")
    finally:
        scratch.restore()
    sys.exit(0 if report(mutants, results) else 1)


if __name__ == "__main__":
    main()
