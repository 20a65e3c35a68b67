"""Disks that are full or slow: saving fails or waits, training does not, and saving works again afterwards."""

import unittest

from common import Case, last_step, leftovers, lines


class Disks(Case):
    STEPS = 900

    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1), f"--train.max_steps={self.STEPS}",
                     "--checkpoint.disk_every_steps=20"]

    def events(self, run, *kinds):
        return [e for e in lines(run / "events.jsonl") if e["kind"] in kinds]

    def begin(self):
        self.want = self.digest(self.train("reference", *self.keys))
        run, process = self.start("run", *self.keys)
        self.wait_for(lambda: self.events(run, "checkpoint_saved"), "a checkpoint")
        return run, process

    def inject(self, run, fault):
        self.command("console", run, "-c", f"inject {fault}")

    def check(self, run, process):
        self.assertEqual(process.wait(90), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, self.STEPS + 1)))
        self.assertFalse(self.events(run, "trainer_down", "node_lost", "fenced"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")

    def test_a_full_disk_stops_saving_but_not_training(self):
        run, process = self.begin()
        self.inject(run, "disk_full n0 --ms 700")
        failed = self.wait_for(lambda: self.events(run, "checkpoint_failed"), "a failed checkpoint")[0]
        self.assertIn("No space left on device", failed["reason"])
        self.wait_for(lambda: last_step(run) >= failed["step"] + 10, "steps without checkpoints")
        self.check(run, process)
        self.assertGreater(self.events(run, "checkpoint_saved")[-1]["time"], self.events(run, "checkpoint_failed")[-1]["time"])

    def test_a_slow_disk_delays_saving_but_not_training(self):
        """Each write waits for as long as a hung file system would be hung."""
        run, process = self.begin()
        self.inject(run, "slow_disk n0 --value 60000 --ms 1500")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 60, "steps while the disk hangs")
        failed = self.wait_for(lambda: self.events(run, "checkpoint_failed"), "a checkpoint that was passed over")[0]
        self.assertIn("too slow", failed["reason"])
        self.check(run, process)
        self.assertGreater(self.events(run, "checkpoint_saved")[-1]["time"], self.events(run, "checkpoint_failed")[-1]["time"])


if __name__ == "__main__":
    unittest.main()
