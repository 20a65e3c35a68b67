#!/usr/bin/env python3
"""Runs the commands of README.md and of the pages in docs/ and tests/; checks their links, paths, lengths.

    SIMPLESCALE_BIN=build/release/bin tests/docs/commands.py [--keep] [PAGE...]

Every block that begins with ```sh runs under `bash -euo pipefail`, in order, in one scratch folder
for each page. The folder has ./simplescale (a shim that starts $SIMPLESCALE_BIN/simplescale),
configs/ and .deps/; pages share prepared data. A comment on the line before a block leaves it out:

    <!-- not run: needs Slurm -->
    <!-- not run: needs a GPU -->
    <!-- not run: needs a bucket -->
    <!-- not run: needs several hosts -->
    <!-- not run: takes N minutes -->
    <!-- run if installed: PACKAGE -->     runs where .deps/python has that Python package

Without SIMPLESCALE_BIN only links, `paths/of/files`, lengths, and the pages that sources name are
checked. Exit code 1 if anything is wrong.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README_LINES_MAX, COLUMNS_MAX = 130, 100
BLOCK_S_MAX = float(os.environ.get("SIMPLESCALE_DOCS_BLOCK_S", 300))  # a slow, busy machine
NOT_RUN = re.compile(r"<!-- not run: (needs Slurm|needs a GPU|needs a bucket|needs several hosts|takes \d+ minutes?) -->$")
RUN_IF = re.compile(r"<!-- run if installed: (\w+) -->$")
PATH = re.compile(r"`((?:runtime|model|transport|tools|actors|app|tests|configs|cmake)/[\w./-]+)`")
MENTION = r"docs/[A-Za-z-]+\.md(#[a-z0-9-]+)?"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block:
    def __init__(self, page, line, text, skipped, package):
        self.page, self.line, self.text = page, line, text
        self.skipped = skipped  # why it is not run, or ""
        self.package = package  # a Python package that it needs, or ""

    @property
    def name(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, lines, problems):
    """The ```sh blocks of a page, in order."""
    blocks, fence, begin, marked = [], None, 0, ("", "")
    for number, line in enumerate(lines, 1):
        if fence is not None:
            if line.strip() == "```":
                if fence == "sh":
                    text = "\n".join(lines[begin:number - 1])
                    blocks.append(Block(page, begin + 1, text, *marked))
                fence = None
        elif line.startswith("```"):
            fence, begin = line[3:].strip(), number
            before = lines[number - 2] if number > 1 else ""
            skip, package = NOT_RUN.match(before), RUN_IF.match(before)
            marked = (skip[1] if skip else "", package[1] if package else "")
            if before.startswith(("<!-- not run", "<!-- run if")) and not (skip or package):
                problems.append(f"{page}:{number - 1}: unknown mark {before}")
    if fence is not None:
        problems.append(f"{page}:{begin}: a block that does not end")
    return blocks


def anchors_of(path):
    """The names by which GitHub links to the headings of a page."""
    found = set()
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower().replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def check_links(page, text, problems):
    for target in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        if not path.exists():
            problems.append(f"{page}: the link to {target} leads nowhere")
        elif anchor and path.suffix == ".md" and anchor not in anchors_of(path):
            problems.append(f"{page}: {file or page} has no heading #{anchor}")


def check_paths(page, text, problems):
    for path in sorted(set(PATH.findall(text))):
        if "NAME" not in path and not (ROOT / path).exists():
            problems.append(f"{page}: {path} does not exist")


def check_mentions(problems):
    """Sources, tests and configurations name pages, and headings of them, that exist."""
    command = ["git", "-c", "safe.directory=*", "grep", "-ohIE", MENTION, "--", ":!docs", ":!README.md"]
    for mention in sorted(set(subprocess.check_output(command, cwd=ROOT, text=True).split())):
        file, _, anchor = mention.partition("#")
        if not (ROOT / file).exists() or anchor and anchor not in anchors_of(ROOT / file):
            problems.append(f"{mention} is named outside of the pages and leads nowhere")


def check_lengths(page, lines, problems):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            problems.append(f"{page}:{number}: {len(line)} characters, at most {COLUMNS_MAX}")
    if page == "README.md" and len(lines) > README_LINES_MAX:
        problems.append(f"README.md: {len(lines)} lines, at most {README_LINES_MAX}")


def make_scratch(folder, programs, data):
    """What the commands of a page expect around them."""
    folder.mkdir(parents=True)
    shim = folder / "simplescale"
    shim.write_text(f'#!/bin/sh\nexec "{programs}/simplescale" "$@"\n')
    shim.chmod(0o755)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "data").symlink_to(data)
    if (ROOT / ".deps").exists():
        (folder / ".deps").symlink_to((ROOT / ".deps").resolve())


def is_installed(package):
    python = ROOT / ".deps/python/bin/python"
    test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
    return python.exists() and subprocess.run([python, "-c", test]).returncode == 0


def run_block(block, folder, sessions):
    """Returns what went wrong, or ""."""
    output = folder / ".output"
    with output.open("wb") as file:
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", block.text], cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                   start_new_session=True)
    sessions.append(process.pid)
    try:
        code = process.wait(timeout=BLOCK_S_MAX)
        why = f"exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        why = f"not done after {BLOCK_S_MAX:.0f} s"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not why:
        return ""
    return f"{block.name}: {why}\n{block.text}\n--- its output\n" + \
        output.read_text(errors="replace")[-6000:]


def run_page(blocks, folder):
    """Runs a page's blocks until one fails. Ends what they left running."""
    sessions = []
    try:
        for block in blocks:
            skipped = block.skipped
            if block.package and not is_installed(block.package):
                skipped = f"{block.package} is not installed"
            if skipped:
                print(f"{block.name}: not run: {skipped}", flush=True)
                continue
            begin = time.monotonic()
            problem = run_block(block, folder, sessions)
            print(f"{block.name}: {time.monotonic() - begin:.1f} s", flush=True)
            if problem:
                return problem
    finally:
        for session in sessions:
            try:
                os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return ""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--keep", action="store_true", help="keeps the scratch folder")
    arguments.add_argument("pages", nargs="*", help="README.md, docs/data.md, ... (all)")
    flags = arguments.parse_args()
    pages = ["README.md"] + sorted(str(p.relative_to(ROOT)) for folder in ("docs", "tests")
                                   for p in (ROOT / folder).rglob("*.md"))
    problems, blocks = [], {}
    for page in pages:
        text = (ROOT / page).read_text()
        check_links(page, text, problems)
        check_paths(page, text, problems)
        check_lengths(page, text.splitlines(), problems)
        blocks[page] = blocks_of(page, text.splitlines(), problems)
    check_mentions(problems)
    programs = os.environ.get("SIMPLESCALE_BIN")
    if programs:
        scratch = Path(tempfile.mkdtemp(prefix="ss-docs-"))
        (scratch / "data").mkdir()
        failed = False
        for page in flags.pages or pages:
            if not blocks[page]:
                continue
            folder = scratch / page.replace("/", "-").removesuffix(".md")
            make_scratch(folder, Path(programs).resolve(), scratch / "data")
            problem = run_page(blocks[page], folder)
            if problem:
                problems.append(problem)
                failed = True
        if failed or flags.keep:
            print(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    print("\n".join(problems) or f"{len(pages)} pages are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
