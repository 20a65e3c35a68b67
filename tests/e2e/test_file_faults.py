"""The file system with faults (tests/chaos/file_faults) does what it says: each effect occurs, at the calls that it is for, below
its folder only, and the same seed makes the same choices."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from common import BIN, lines

LIBRARY = BIN / "libfile_faults.so"


class FileFaults(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="simplescale-file-faults-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.folder, self.state, self.other = (self.home / name for name in ("run", "state", "other"))
        for folder in (self.folder, self.state, self.other):
            folder.mkdir()

    def environment(self, *settings):
        text = ";".join([f"folder={self.folder}", f"state={self.state}", *settings])
        return {**os.environ, "LD_PRELOAD": str(LIBRARY), "SIMPLESCALE_FILE_FAULTS": text}

    def python(self, code, *rates, seed=1, folder=None, extra=()):
        """Runs Python code with the faults. `f` is the folder there, `failed(call)` the errno of a call or 0."""
        prelude = textwrap.dedent("""
            import os, sys, time
            f = sys.argv[1]
            def failed(call, *arguments):
                try:
                    call(*arguments)
                except OSError as error:
                    return error.errno
                return 0
            """)
        done = subprocess.run([sys.executable, "-I", "-S", "-c", prelude + textwrap.dedent(code), str(folder or self.folder), *extra],
                              env=self.environment(f"seed={seed}", *rates), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.split()

    def log(self):
        return lines(self.state / "faults.jsonl")

    # Makes every class of call in a folder that has the files a, b and c, and prints the calls that fail.
    EVERY_CALL = """
        os.chdir(f)
        fd = os.open(f + "/a", os.O_RDWR | os.O_CREAT if f.endswith("/open") else os.O_RDWR)  # does not fail
        calls = {
            "open": (os.open, f + "/a", os.O_RDONLY), "create": (os.open, f + "/new", os.O_WRONLY | os.O_CREAT),
            "read": (os.read, fd, 1), "write": (os.write, fd, b"text"), "sync": (os.fsync, fd), "size": (os.ftruncate, fd, 2),
            "rename": (os.rename, f + "/b", f + "/renamed"), "link": (os.link, f + "/a", f + "/link"), "unlink": (os.unlink, "c"),
            "symlink": (os.symlink, "a", f + "/symlink"), "mkdir": (os.mkdir, f + "/folder"), "stat": (os.stat, "a"),
            "list": (os.listdir, f), "touch": (os.utime, f + "/a"), "close": (os.close, fd),
        }
        print(*(name for name, call in calls.items() if failed(*call)))
        """
    CALLS = ["open", "create", "read", "write", "sync", "size", "rename", "link", "unlink", "symlink", "mkdir", "stat", "list", "touch",
             "close"]

    def every_call(self, folder, *rates):
        folder.mkdir()
        for name in "abc":
            (folder / name).write_text("")
        return self.python(self.EVERY_CALL, *rates, folder=folder)

    def test_each_class_of_calls_fails_alone(self):
        for call in self.CALLS:
            self.assertEqual(self.every_call(self.folder / call, f"fail.{call}=1"), [call])
        self.assertEqual({line["call"] for line in self.log()}, set(self.CALLS))

    def test_nothing_happens_outside_of_the_folder(self):
        everything = ["delay=1", "fail=1", "tear=1", "replay=1", "stale=1"]
        self.assertEqual(self.every_call(self.home / "elsewhere", *everything), [])
        self.assertEqual(self.every_call(self.home / "run2", *everything), [])  # begins with the folder's name
        self.assertEqual(self.log(), [])

    def test_a_descriptor_that_becomes_another_file_is_left_alone(self):
        made = self.python("""
            fd = os.open(f + "/a", os.O_RDWR | os.O_CREAT)
            other = os.open(sys.argv[2] + "/b", os.O_RDWR | os.O_CREAT)
            os.dup2(other, fd)
            print(failed(os.write, fd, b"text"))
            """, "fail.write=1", extra=[str(self.other)])
        self.assertEqual(made, ["0"])

    def test_a_failure_ends_and_is_logged(self):
        made = self.python("""
            fd = os.open(f + "/a", os.O_RDWR | os.O_CREAT)
            print(*(failed(os.write, fd, b"text") for _ in range(400)))
            """, "fail.write=0.02")
        errors = [int(number) for number in made]
        self.assertEqual(set(errors), {0, errno.EIO, errno.ENOSPC})
        self.assertGreater(errors.count(0), 200)
        self.assertEqual([line["error"] for line in self.log()], [number for number in errors if number])
        self.assertEqual([line["call_number"] for line in self.log()], [at for at, number in enumerate(errors) if number])
        self.assertEqual({(line["call"], line["effect"], line["path"]) for line in self.log()}, {("write", "fail", "a")})

    def test_a_torn_write_leaves_a_part_on_the_disk(self):
        made = self.python("""
            for i in range(60):
                fd = os.open(f"{f}/{i}", os.O_RDWR | os.O_CREAT)
                try:
                    print(os.write(fd, b"0123456789"))
                except OSError as error:
                    print("error")
                os.close(fd)
            """, "tear=1")
        sizes = [(self.folder / str(i)).stat().st_size for i in range(60)]
        self.assertGreater(len(set(sizes)), 5)
        self.assertTrue(all(0 < size < 10 for size in sizes), sizes)
        self.assertIn("error", made)
        short = [(int(said), size) for said, size in zip(made, sizes) if said != "error"]
        self.assertTrue(short)
        self.assertTrue(all(said == size for said, size in short), short)

    def test_a_replayed_call_is_made_and_reported_as_failed(self):
        made = self.python("""
            for i in range(20):
                open(f"{f}/a{i}", "w").close()
                print("rename", failed(os.rename, f"{f}/a{i}", f"{f}/b{i}"), os.path.exists(f"{f}/b{i}"))
                print("link", failed(os.link, f"{f}/b{i}", f"{f}/c{i}"), os.path.exists(f"{f}/c{i}"))
                print("unlink", failed(os.unlink, f"{f}/b{i}"), not os.path.exists(f"{f}/b{i}"))
            """, "replay=1")
        found = set(zip(made[::3], map(int, made[1::3]), made[2::3]))
        self.assertEqual(found, {(call, number, "True") for call, own in (("rename", errno.ENOENT), ("link", errno.EEXIST), ("unlink", errno.ENOENT))
                                 for number in (errno.EIO, own)})

    def test_delays_and_hangs_take_their_time(self):
        made = self.python("""
            begin = time.monotonic()
            for i in range(10):
                os.path.exists(f)
            print(time.monotonic() - begin)
            """, "hang.stat=1", "hang_ms=40")
        self.assertEqual(len(self.log()), 10)
        self.assertTrue(all(10 <= line["ms"] <= 40 for line in self.log()))
        self.assertGreaterEqual(float(made[0]) * 1000, sum(line["ms"] for line in self.log()))

    def test_an_outage_holds_up_all_processes_of_a_client_and_no_other(self):
        """The first process begins an outage. A process of the same node waits for its end; one of another node does not."""
        look = "import os, sys; os.path.exists(sys.argv[1])"
        first = subprocess.Popen([sys.executable, "-I", "-S", "-c", look, str(self.folder), "--node", "1"],
                                 env=self.environment("outage=1", "outage_ms=20000"))
        self.addCleanup(lambda: (first.kill(), first.wait()))
        end = time.monotonic() + 20
        while not self.log() and time.monotonic() < end:
            time.sleep(0.01)
        self.python("os.path.exists(f)", extra=["--node", "2"])
        self.python("os.path.exists(f)", extra=["--process", "n1/p0"])
        self.assertEqual(first.wait(30), 0)
        begun, waited = self.log()
        self.assertEqual([begun["call"], begun["effect"], waited["call"], waited["effect"]], ["stat", "outage", "stat", "waited"])
        self.assertIn("n1/p0", waited["process"])
        self.assertGreaterEqual(waited["time"] - begun["time"], begun["ms"] / 1000 - 0.1)

    # Another client changes the folder between two looks of this one.
    STALE = """
        import subprocess
        def other(command):
            subprocess.run(command, shell=True, check=True, cwd=f, env={})
        os.listdir(f), os.path.exists(f + "/new"), os.stat(f + "/old")
        other("echo text > new; echo longer >> old")
        print(os.path.exists(f + "/new"), "new" in os.listdir(f), os.stat(f + "/old").st_size, failed(os.open, f + "/new", os.O_RDONLY))
        """

    def test_a_stale_client_sees_the_folder_as_it_was(self):
        (self.folder / "old").write_text("")
        self.assertEqual(self.python(self.STALE, "stale=1"), ["False", "False", "0", str(errno.ENOENT)])
        self.assertEqual({line["call"] for line in self.log()}, {"stat", "list", "open"})

    def test_a_fresh_listing_ends_what_a_client_remembers_of_the_folder(self):
        (self.folder / "old").write_text("")
        code = self.STALE.replace("print(", "os.listdir(f)\n        print(", 1)
        self.assertEqual(self.python(code, "stale=1", "stale.list=0"), ["True", "True", "7", "0"])

    def test_without_stale_reads_the_change_is_seen(self):
        (self.folder / "old").write_text("")
        self.assertEqual(self.python(self.STALE), ["True", "True", "7", "0"])

    def test_a_client_sees_its_own_changes(self):
        made = self.python("""
            os.path.exists(f + "/new"), os.listdir(f)
            open(f + "/new", "w").close()
            print(os.path.exists(f + "/new"), os.listdir(f))
            """, "stale=1")
        self.assertEqual(made, ["True", "['new']"])

    APPENDS = """
        fd = os.open(f + "/a", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"one,")
        with open(sys.argv[2] + "/a", "ab") as other:  # another client, by another name of the folder
            other.write(b"TWO,")
        os.write(fd, b"three,")
        """

    def appended(self, *rates):
        self.other.rmdir()
        self.other.symlink_to(self.folder)
        self.python(self.APPENDS, *rates, extra=[str(self.other)])
        return (self.folder / "a").read_text()

    def test_clients_that_append_to_one_file_overwrite_each_other(self):
        self.assertEqual(self.appended("overwrite=1"), "one,three,")

    def test_without_overwriting_both_clients_append(self):
        self.assertEqual(self.appended(), "one,TWO,three,")

    def choices(self, seed):
        before = len(self.log())
        self.python("""
            fd = os.open(f + "/a", os.O_RDWR | os.O_CREAT)
            for i in range(300):
                failed(os.write, fd, b"text"), failed(os.stat, f + "/a")
            """, "fail=0.01", "tear=0.05", "delay=0.05", "delay_ms=1", seed=seed)
        return [(line["call"], line["effect"], line["call_number"], line["error"]) for line in self.log()[before:]]

    def test_the_choices_are_those_of_the_seed_and_of_the_start(self):
        first, second = self.choices(7), self.choices(7)
        self.assertNotEqual(first, second)  # the second start of the same command has its own
        shutil.rmtree(self.state)
        self.state.mkdir()
        self.assertEqual([self.choices(7), self.choices(7)], [first, second])
        shutil.rmtree(self.state)
        self.state.mkdir()
        self.assertNotEqual(self.choices(8), first)

    def test_the_log_names_process_call_and_path(self):
        self.python('open(f + "/a", "w").close()', "delay.create=1", "delay_ms=1")
        line = self.log()[0]
        self.assertEqual((line["call"], line["effect"], line["path"]), ("create", "delay", "a"))
        self.assertRegex(line["process"], "^python.* #0$")
