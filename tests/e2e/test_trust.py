"""Other users of a host: what they can do to a run, its folder and its page."""

import fcntl
import os
import shutil
import stat
import subprocess
import unittest

from common import PROGRAM, Case

NOBODY = 65534
ROOT = os.geteuid() == 0


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


class RunFolder(Case):
    def train_with_umask(self, name, umask):
        run = self.folder / name
        before = os.umask(umask)
        try:
            self.command("train", self.config, f"--run={run}", *self.layout(2, 1), "--train.max_steps=4",
                         "--checkpoint.disk_every_steps=2")
        finally:
            os.umask(before)
        return run

    def test_no_file_is_wider_than_the_umask_and_control_is_private_with_any(self):
        run = self.train_with_umask("narrow", 0o077)
        self.assertEqual([p for p in [run, *run.rglob("*")] if mode(p) & 0o077 and not p.is_symlink()], [])
        run = self.train_with_umask("wide", 0)
        self.assertEqual(mode(run / "control") & 0o777, 0o700)
        self.assertEqual([p for p in (run / "control").rglob("*") if mode(p) & 0o022 and p.name != "lock"], [])

    def test_a_key_of_another_user_or_that_others_may_write_is_refused(self):
        run = self.folder / "run"
        (run / "control").mkdir(parents=True)
        shutil.copy(self.config, run / "config.toml")
        (run / "control/supervisor.json").write_text('{"epoch": 1, "address": "00", "instance": "i"}')
        key = run / "control/key"
        key.write_bytes(bytes(32))
        lock = (run / "control/lock").open("w")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a launcher lived

        def refused():
            done = subprocess.run([PROGRAM, "console", run, "-c", "pause"], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            return done.stdout + done.stderr

        key.chmod(0o666)
        self.assertIn("can be written by other users", refused())
        key.chmod(0o600)
        if ROOT:
            os.chown(key, NOBODY, NOBODY)
            self.assertIn("belongs to another user", refused())

    def test_a_run_folder_of_another_user_is_refused_before_anything_is_written(self):
        if not ROOT:
            self.skipTest("only root can make files of another user")
        run = self.folder / "run"
        (run / "control").mkdir(parents=True)
        os.chown(run / "control", NOBODY, NOBODY)
        done = subprocess.run([PROGRAM, "train", self.config, f"--run={run}", *self.layout(1, 1), "--train.max_steps=2"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 78)
        self.assertIn("belongs to another user", done.stderr)
        self.assertEqual(list((run / "control").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
