"""Disks that are full or slow: saving fails or waits, training does not, and saving works again afterwards. Token files
that cannot be read: training waits for them for a while, and no process dies of it."""

import os
import signal
import unittest

from common import Case, last_step, leftovers, lines, status


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

    def test_a_checkpoint_that_cannot_be_read_is_tried_again_and_none_older_is_used(self):
        run, process = self.begin()
        self.wait_for(lambda: len(self.events(run, "checkpoint_saved")) > 1, "an older checkpoint")
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        for node in status(run)["nodes"]:
            os.kill(node["pid"], signal.SIGKILL)
        self.wait_for(lambda: len(self.events(run, "node_lost")) == 2, "both nodes' loss, with their memory")
        newest = max(run.glob("checkpoints/step-*"))
        manifest, aside = newest / "manifest.json", run / "aside"
        manifest.rename(aside)
        manifest.symlink_to(manifest)
        self.command("console", run, "-c", "resume")
        found = self.wait_for(lambda: self.events(run, "bad_disk"), "a checkpoint that cannot be read")[0]
        self.assertIn(f"{manifest}: Too many levels of symbolic links", found["reason"])
        aside.rename(manifest)
        self.assertEqual(process.wait(90), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(self.events(run, "checkpoint_skipped", "drained"))
        begun = [r for r in (e["reason"] for e in self.events(run, "joined", "layout_changed")) if "from checkpoint" in r]
        self.assertGreater(len(begun), 1)
        for reason in begun:
            self.assertIn(f"step {int(newest.name[5:])} from checkpoint", reason)
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")

    def test_a_run_does_not_go_on_from_an_older_checkpoint_for_an_error_of_the_disk(self):
        keys = [*self.keys, "--checkpoint.disk_every_steps=50", "--train.max_steps=100"]
        run = self.train("run", *keys)
        manifest, aside = run / "checkpoints/step-00000100/manifest.json", run / "aside"
        manifest.rename(aside)
        manifest.symlink_to(manifest)
        self.command("train", self.config, *keys, f"--run={run}", code=74)
        self.assertIn(f"{manifest}: Too many levels of symbolic links", self.stderr)
        self.assertIn("move", self.stderr)
        self.assertEqual(last_step(run), 100)
        aside.rename(manifest)
        self.assertIn("metrics.jsonl: 100 steps", self.verify(run))


class TokenFiles(Case):
    def setUp(self):
        super().setUp()
        self.content = self.data.read_bytes()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1), "--train.max_steps=600", "--checkpoint.disk_every_steps=0",
                     "--train.validation_samples=0"]

    def events(self, run, *kinds):
        return [e for e in lines(run / "events.jsonl") if e["kind"] in kinds]

    def begin(self):
        run, process = self.start("run", *self.keys)
        self.wait_for(lambda: last_step(run) >= 20, "steps")
        with open(self.data, "r+b") as file:
            file.truncate(100)
        return run, process

    def check(self, run, process):
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertFalse(self.events(run, "trainer_down", "node_lost"))
        self.assertIn("each sample exactly once", self.verify(run))
        got = self.digest(run)
        self.assertEqual(got, self.digest(self.train("reference", *self.keys)))

    def said(self, run, text):
        return any(text in log.read_text(errors="replace") for log in (run / "logs").glob("*.log"))

    def test_one_that_is_cut_off_and_put_back_is_waited_for(self):
        run, process = self.begin()
        self.wait_for(lambda: self.said(run, "trying again"), "a node that has noticed")
        self.data.write_bytes(self.content)
        self.check(run, process)
        self.assertFalse(self.events(run, "step_failed"))

    def test_one_that_comes_back_late_ends_a_generation_and_nothing_else(self):
        run, process = self.begin()
        failed = self.wait_for(lambda: self.events(run, "step_failed"), "a generation that ends")[0]
        self.assertIn(f"{self.data}: ends at byte 100", failed["reason"])
        self.data.write_bytes(self.content)
        self.check(run, process)

    def test_one_that_never_comes_back_ends_the_run_with_its_name(self):
        self.keys.append("--supervision.give_up_after_cycles=1")
        run, process = self.begin()
        self.assertEqual(process.wait(120), 3, process.stdout.read())
        reason = self.events(run, "failed")[0]["reason"]
        self.assertIn("generations in a row without a committed step", reason)
        self.assertIn(f"{self.data}: ends at byte 100", reason)
        self.assertFalse(self.events(run, "trainer_down", "node_lost"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")


if __name__ == "__main__":
    unittest.main()
