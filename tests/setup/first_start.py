#!/usr/bin/env python3
"""The wrapper `simplescale` on a machine where everything is missing: it says what it installs, and on a terminal asks once.

apt-get, dpkg, pip, cmake and sudo are stubs that write their arguments to a file, so nothing is installed."""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLED = 'echo "${0##*/} $*" >>"$CALLS"\n'
STUBS = {
    "apt-get": CALLED, "dpkg": CALLED, "dpkg-query": "", "sudo": '[[ $1 != -* ]] || exit 0\nexec "$@"\n', "nvcc": "",
    "cmake": CALLED + """[[ $1 != --build ]] || { mkdir -p "$2/bin"; printf '#!/bin/bash\necho "program: $*"\n' >"$2/bin/simplescale"
chmod +x "$2/bin/simplescale"; }\n""",
}


class FirstStart(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="simplescale-setup-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "cmake").mkdir()
        shutil.copy(ROOT / "simplescale", self.folder)
        shutil.copy(ROOT / "cmake/wheels.lock", self.folder / "cmake")
        for folder in ("app", "runtime", "model", "transport", "tools", "actors", "stubs"):
            (self.folder / folder).mkdir()
        (self.folder / "CMakeLists.txt").touch()
        for name, script in STUBS.items():
            self.stub(self.folder / "stubs" / name, script)
        self.calls = self.folder / "calls"
        self.environment = {**{k: v for k, v in os.environ.items() if k != "CI"}, "PATH": f"{self.folder}/stubs:/usr/bin:/bin", "CALLS": str(self.calls)}

    def stub(self, path, script):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/bash\n" + script)
        path.chmod(0o755)

    def have_python(self):
        """A venv that the wrapper takes for a complete one; its pip is a stub."""
        self.stub(self.folder / ".deps/python/bin/python", CALLED)

    def called(self):
        return self.calls.read_text() if self.calls.exists() else ""

    def on_terminal(self, answer, *words):
        """Runs the wrapper on a terminal and types the answer to its question. Returns what it printed, and its exit code."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve("./simplescale", ["./simplescale", *words], self.environment)
        said, deadline = "", time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if select.select([terminal], [], [], 1)[0]:
                    said += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # it has ended
                break
            if answer and "install nothing  " in said:
                os.write(terminal, answer.encode())
                answer = None
        os.close(terminal)
        return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def without_terminal(self, *words):
        done = subprocess.run(["./simplescale", *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, done.stderr

    def test_without_a_terminal_it_tells_and_goes_on(self):
        self.have_python()
        out, said = self.without_terminal("status", "runs/x")
        self.assertEqual(out, "program: status runs/x\n")
        told = said[:said.index("==> installing Debian packages")]
        self.assertRegex(told, r"Debian packages, by apt-get as root \(about 140 MB to download, 0\.6 GB on disk\):\n +g\+\+ cmake ninja-build")
        self.assertRegex(told, r"Python wheels in \S+/\.deps/python \(about 3 GB to download, 5 GB on disk\):\n +torch==")
        self.assertNotIn("slurm", told)
        self.assertRegex(self.called(), r"apt-get .*install -y --no-install-recommends g\+\+ cmake")
        self.assertIn("python -I -m pip install", self.called())
        # Everything is there now.
        self.calls.unlink()
        self.assertEqual(self.without_terminal("status", "runs/x"), ("program: status runs/x\n", ""))
        self.assertEqual(self.called(), "")
        said, code = self.on_terminal(None, "train", "c.toml")
        self.assertEqual((said.strip(), code), ("program: train c.toml", 0))

    def test_on_a_terminal_enter_goes_on(self):
        self.have_python()
        said, code = self.on_terminal("\r", "train", "c.toml")
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("Enter: go on"), 1)
        self.assertIn("program: train c.toml", said)
        self.assertIn("apt-get", self.called())

    def test_no_and_ctrl_c_install_nothing(self):
        for answer, exits in (("n\r", 1), ("what\r", 1), ("\x04", 1), ("\x03", 130)):
            with self.subTest(answer=answer):
                said, code = self.on_terminal(answer, "train", "c.toml")
                self.assertIn(code, {exits, -2} if exits == 130 else {exits}, said)
                self.assertIn("Debian packages, by apt-get as root", said)
                self.assertEqual(self.called(), "")
                self.assertFalse((self.folder / ".deps").exists())

    def test_yes_does_not_ask(self):
        for words in (["--yes", "train", "c.toml"], ["train", "c.toml", "--yes"]):
            shutil.rmtree(self.folder / ".deps", ignore_errors=True)
            self.have_python()
            said, code = self.on_terminal(None, *words)
            self.assertEqual(code, 0, said)
            self.assertNotIn("Enter", said)
            self.assertIn("Debian packages, by apt-get as root", said)
            self.assertIn("program: train c.toml\r\n", said)

    def test_it_compiles_while_the_wheels_are_downloaded(self):
        os.mkfifo(self.folder / "calls.begun")
        self.stub(self.folder / "stubs/cmake", 'if [[ -n $SIMPLESCALE_EARLY && $1 == --build ]]; then echo >"$CALLS.begun"; sleep 1000; fi\n'
                  + STUBS["cmake"])
        self.stub(self.folder / ".deps/python/bin/python", CALLED + '[[ ! -p $CALLS.begun ]] || { cat "$CALLS.begun"; rm "$CALLS.begun"; }\n')
        self.assertEqual(self.without_terminal("status", "runs/x")[0], "program: status runs/x\n")  # so the compiler was stopped
        self.assertFalse((self.folder / "calls.begun").exists())
        self.assertIn("--target programs", self.called())

    def test_a_test_that_passes_only_when_it_is_repeated_is_named(self):
        self.have_python()
        (self.folder / "tests").mkdir()
        for code, last in ((0, "   Passed    1.00 sec"), (8, "***Failed    1.00 sec")):
            self.stub(self.folder / "stubs/ctest", CALLED + f"""echo "long=$SIMPLESCALE_LONG" >>"$CALLS"
cat <<'END'
1/3 Test  #1: base .............   Passed    1.00 sec
2/3 Test  #2: e2e_runs .........***Failed    1.00 sec
    Test  #2: e2e_runs .........{last}
3/3 Test #13: gpu ..............***Skipped   1.00 sec
END
exit {code}
""")
            done = subprocess.run(["./simplescale", "test", "--long", "-R", "x"], cwd=self.folder, env=self.environment,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, code, done.stderr)
            named = re.findall(r"passed only when it was repeated: (.*)", done.stderr)
            self.assertEqual(named, [] if code else ["e2e_runs"])
            self.assertIn("1/3 Test  #1: base", done.stdout)
        self.assertRegex(self.called(), r"ctest .*--build-config Long -R x\nlong=1\n")

    def test_the_tests_packages_are_told(self):
        said, _ = self.on_terminal("n\r", "test")
        tests = re.sub(r"\s+", " ", said)
        for package in ("slurmctld", "munge", "chromium-headless-shell", "wandb==", "services"):
            self.assertIn(package, tests)
        # Only these are missing once the programs are there.
        self.have_python()
        self.without_terminal("status")
        self.stub(self.folder / "stubs/dpkg-query", "printf '%s installed\n' $(sed -n '/^debian_build=(/,/^)/p' simplescale | tr -d '()')")
        said, _ = self.on_terminal("n\r", "test")
        self.assertNotIn("ninja-build", said)
        self.assertNotIn("torch==", said)
        self.assertRegex(said, r"Debian packages for the tests.*\s+git faketime")


if __name__ == "__main__":
    unittest.main()
