"""Processes that the checklist starts: each has a time limit, and none outlives its part."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36


class Skip(Exception):
    """A part cannot run here; the message says why."""


class Wrong(Exception):
    """A check failed; the message says which."""


class Late(Wrong):
    """A command did not end in time."""


class Stopped(BaseException):
    """A signal asks the checklist to end. Not an Exception, which a part may handle."""


def expect(right, what):
    if not right:
        raise Wrong(what)


def our_environment():
    """That of our programs. Python keeps the caller's: the packed libraries may be older than those that it needs."""
    found = [os.environ[name] for name in ("SIMPLESCALE_LIBRARIES", "LD_LIBRARY_PATH") if os.environ.get(name)]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(found)}


def prepare():
    """Orphans of our processes become our children, so that end_all() finds them. Signals that ask for an end raise Stopped."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def stop(number, _):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # the end has begun
        raise Stopped(signal.Signals(number).name)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def descendants():
    """The processes that this one has started, and theirs; without zombies."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it has ended
            continue
        if state not in "ZX":
            parents.setdefault(int(parent), []).append(int(folder.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


def end_all(seconds=5):
    """Kills all descendants. Returns how many there were."""
    end, first = time.monotonic() + seconds, len(descendants())
    while (left := descendants()) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)
    return first


def call(command, seconds, codes=(0,), **options):
    """What the command prints, with what it prints on stderr if options has stderr=subprocess.STDOUT. After `seconds` it is killed with all that it has started."""
    text = " ".join(map(str, command))
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True,
                               **{"env": our_environment(), "stderr": subprocess.PIPE, **options})
    try:
        out, errors = process.communicate(timeout=max(1, seconds))
    except subprocess.TimeoutExpired:
        end_all()
        try:
            out, errors = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            out = errors = ""
        errors = errors or ""
        raise Late(f"no end after {seconds:.0f} s: {text}\n{out[-1500:]}\n{errors[-1500:]}") from None
    expect(process.returncode in codes, f"exit code {process.returncode}: {text}\n{out[-1500:]}\n{(errors or '')[-1500:]}")
    return out
