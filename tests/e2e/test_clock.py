"""The wall clock of every process of a run jumps by days, forward and back: no process is declared lost, nothing waits."""

import glob
import os
import subprocess
import unittest

from common import PROGRAM, Case, last_step, leftovers, lines, status

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")


@unittest.skipUnless(FAKETIME, "SKIPPED: no libfaketime; apt-get install faketime")
class Clock(Case):
    steps = 200

    def test_wall_clock_jumps_have_no_effect(self):
        layout = [*self.layout(2, 2), "--train.global_batch_size=4"]
        want = self.undisturbed(*layout, f"--train.max_steps={self.steps}")
        clock, run = self.folder / "clock", self.folder / "run"
        clock.write_text("+0")
        # The monotonic clock is not faked: the kernel's never jumps.
        env = {**os.environ, "LD_PRELOAD": FAKETIME[0], "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
               "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        process = subprocess.Popen([PROGRAM, "train", str(self.config), f"--run={run}", *layout, f"--train.max_steps={self.steps}"],
                                   cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        for step, offset in ((20, "+1d"), (60, "-2d"), (100, "+0")):
            self.wait_for(lambda: last_step(run) >= step, f"step {step}")
            self.assertIsNone(process.poll(), "the run ended before the clock jumped")
            clock.write_text(offset)
        # A new supervisor starts with another wall-clock time than its predecessor.
        self.wait_for(lambda: (status(run) or {}).get("standby"), "a standby")
        os.kill(status(run)["supervisor"]["pid"], 9)
        clock.write_text("-30d")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        times = [m["time"] for m in lines(run / "metrics.jsonl")]
        self.assertGreater(max(times) - min(times), 86400, "the clock did jump")
        seen = [e for e in lines(run / "events.jsonl") if e["phase"] == "detect"]
        self.assertEqual({e["subject"] for e in seen}, {"supervisor"}, seen)
        self.assertFalse(leftovers(run))
