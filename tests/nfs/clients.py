#!/usr/bin/env python3
"""Shows what one NFS client (/mnt/b) sees of what another (/mnt/a) does. tests/nfs/guest.sh runs it."""

import errno
import fcntl
import os
import sys
import time

A, B, SERVER = "/mnt/a", "/mnt/b", "/mnt/exported"
LIMIT_S = 60


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def can_open(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return True
    except OSError:
        return False


def opened(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def until_seen(what, seen):
    """Prints how long it takes until the other client's change is seen."""
    begin = time.monotonic()
    while not seen() and time.monotonic() - begin < LIMIT_S:
        time.sleep(0.05)
    print(f"{what:72} {time.monotonic() - begin:5.1f} s", flush=True)


def said(what, value):
    print(f"{what:72} {value}", flush=True)


def names():
    os.listdir(B), os.path.exists(B + "/new"), write(A + "/new", "")
    until_seen("stat() of a name that was missing", lambda: os.path.exists(B + "/new"))
    can_open(B + "/new2"), write(A + "/new2", "")
    until_seen("open() of a name that was missing", lambda: can_open(B + "/new2"))
    can_open(B + "/new3"), write(A + "/new3", ""), os.listdir(B)
    until_seen("the same, after a listing of its folder", lambda: can_open(B + "/new3"))
    os.listdir(B), write(A + "/listed", "")
    until_seen("a new name in a listing", lambda: "listed" in os.listdir(B))


def contents():
    write(A + "/size", "1"), os.stat(B + "/size"), write(A + "/size", "12345")
    until_seen("a new size, by stat()", lambda: os.stat(B + "/size").st_size == 5)
    os.utime(A + "/size", (1000, 1000))
    until_seen("a touch, by open() and fstat()", lambda: opened(B + "/size").st_mtime == 1000)
    read(B + "/size"), write(A + "/size.new", "new"), os.rename(A + "/size.new", A + "/size")
    until_seen("the contents of a replaced file", lambda: read(B + "/size") == "new")
    os.symlink("one", A + "/link"), os.readlink(B + "/link"), os.symlink("two", A + "/link.new"), os.rename(A + "/link.new", A + "/link")
    until_seen("the target of a replaced link", lambda: os.readlink(B + "/link") == "two")
    for name, text in (("step", "old"), ("tmp", "new")):
        os.mkdir(f"{A}/{name}"), write(f"{A}/{name}/file", text)
    read(B + "/step/file"), os.rename(A + "/step", A + "/step.replaced"), os.rename(A + "/tmp", A + "/step")
    until_seen("a file of a folder that was replaced by rename", lambda: read(B + "/step/file") == "new")


def appends():
    """Two clients that hold one file open with O_APPEND: a deposed supervisor and its successor."""
    deposed = os.open(B + "/lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(deposed, b"one,"), os.fsync(deposed)
    for wait_s in (0, 5):
        successor = os.open(A + "/lines", os.O_WRONLY | os.O_APPEND)
        os.write(successor, b"TWO,"), os.fsync(successor), os.close(successor)
        time.sleep(wait_s)
        os.write(deposed, b"three,"), os.fsync(deposed)
        said(f"appended by two clients: one, TWO, {wait_s} s later three", repr(read(SERVER + "/lines")))


def gaps():
    """As the journal does: each writes at its own positions, and the successor leaves a gap (records_end.cpp)."""
    gap, lines = 80 << 10, b"".join(b'{"step":%d}\n' % i for i in range(5000))
    for synced in (0, 1, 3000, 4096, 8192):
        name = f"/gap{synced}"
        deposed = os.open(B + name, os.O_WRONLY | os.O_CREAT)
        os.pwrite(deposed, lines[:synced], 0), os.fsync(deposed)
        os.pwrite(deposed, lines[synced:synced + 100], synced)  # in its page cache when it is cut off
        successor = os.open(A + name, os.O_RDWR)
        end = os.lseek(successor, 0, os.SEEK_END)
        os.pwrite(successor, b" " * gap, end), os.fsync(successor)
        os.pwrite(successor, lines, end + gap), os.fsync(successor)
        os.fstat(deposed), os.pwrite(deposed, lines[synced + 100:synced + (64 << 10)], synced + 100), os.fsync(deposed)
        os.pwrite(successor, lines, end + gap + len(lines)), os.fsync(successor)
        os.close(deposed), os.close(successor)
        late = lines[synced:synced + (64 << 10)]
        whole = lines[:synced] + late + b" " * (end + gap - synced - len(late)) + lines * 2
        with open(SERVER + name, "rb") as file:
            said(f"late lines of the deposed one, from byte {synced}", "in the gap" if file.read() == whole else "DAMAGE")


def exclusion():
    write(A + "/from", ""), os.link(A + "/from", A + "/to")
    try:
        os.link(B + "/from", B + "/to")
        said("link() to a name that the other client has just made", "is made")
    except OSError as error:
        said("link() to a name that the other client has just made", errno.errorcode[error.errno])
    lock, other = (os.open(folder + "/lock", os.O_RDWR | os.O_CREAT) for folder in (A, B))
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said("flock() of a file that the other client has locked", "is taken")
    except OSError as error:
        said("flock() of a file that the other client has locked", errno.errorcode[error.errno])


def main():
    if not os.path.ismount(B):
        sys.exit("there are no NFS mounts /mnt/a and /mnt/b; run tests/nfs/guest.sh")
    names()
    contents()
    appends()
    gaps()
    exclusion()


if __name__ == "__main__":
    main()
