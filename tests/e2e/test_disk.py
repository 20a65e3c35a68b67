"""Full or slow disks: saving fails or waits, training continues, and saving works again afterwards. Unreadable token files:
training waits for them for a limited time, and no process dies. Unreadable checkpoints: no older one is used (JOB-1)."""

import os
import signal
import unittest

from common import BIN, Case, last_step, leftovers, lines, status


class Disks(Case):
    STEPS = 900

    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1), f"--train.max_steps={self.STEPS}",
                     "--checkpoint.disk_every_steps=20"]

    def events(self, run, *kinds):
        return [e for e in lines(run / "events.jsonl") if e["kind"] in kinds]

    def begin(self):
        self.want = self.undisturbed(*self.keys)
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
        self.inject(run, "disk_full n0 --ms 5000")  # longer than saving is tried again
        failed = self.wait_for(lambda: [e for e in self.events(run, "checkpoint_failed") if "No space left on device" in e["reason"]],
                               "a failed checkpoint")[0]
        # On a fast machine the run has trained all steps by then, and only its last save waits.
        self.wait_for(lambda: last_step(run) >= min(failed["step"] + 10, self.STEPS), "steps without checkpoints")
        self.check(run, process)
        self.assertGreater(self.events(run, "checkpoint_saved")[-1]["time"], self.events(run, "checkpoint_failed")[-1]["time"])

    def test_a_second_sigterm_does_not_cut_the_last_save_short(self):
        run, process = self.start("run", *self.keys, "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        for node in ("n0", "n1"):
            self.inject(run, f"slow_disk {node} --value 500 --ms 20000")
        process.send_signal(signal.SIGTERM)
        self.wait_for(lambda: self.events(run, "stop_requested"), "the stop")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75, process.stdout.read())
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")

    def test_a_write_that_fails_in_the_middle_of_a_line_costs_no_line(self):
        run, state = self.folder / "run", self.folder / "state"
        state.mkdir()
        faults = f"folder={run}/metrics.jsonl;state={state};seed=1;tear.write=0.9"
        self.command("train", self.config, f"--run={run}", *self.keys, "--train.max_steps=100",
                     env={"LD_PRELOAD": str(BIN / "libfile_faults.so"), "SIMPLESCALE_FILE_FAULTS": faults})
        self.assertTrue([line for line in lines(state / "faults.jsonl") if line["error"]])
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 101)))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_full_disk_that_has_room_again_costs_no_checkpoint(self):
        """Also the last one, whose failure would end the run without its newest steps."""
        run, process = self.start("run", *self.keys, "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        for node in ("n0", "n1"):
            self.inject(run, f"disk_full {node} --ms 1200")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")
        self.assertFalse(self.events(run, "checkpoint_failed"))
        self.assertTrue(any("trying again" in log.read_text(errors="replace") for log in (run / "logs").glob("*.log")))
        self.assertFalse(list(run.glob("checkpoints/tmp-*")))

    def test_the_last_step_stays_in_memory_until_a_full_disk_has_room(self):
        """A save is tried again for 3 s; then the trainers hold the step, and save it again 5 s later."""
        run, process = self.start("run", *self.keys, "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        for node in ("n0", "n1"):
            self.inject(run, f"disk_full {node} --ms 6000")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertTrue(self.events(run, "checkpoint_failed"))
        self.assertTrue(self.events(run, "save_again"))
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")
        self.assertFalse(list(run.glob("checkpoints/tmp-*")))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_slow_disk_delays_saving_but_not_training(self):
        """Writes hang for the 1.5 s of the fault."""
        run, process = self.begin()
        self.inject(run, "slow_disk n0 --value 60000 --ms 1500")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 60, "steps while the disk hangs")
        failed = self.wait_for(lambda: self.events(run, "checkpoint_failed"), "a skipped checkpoint")[0]
        self.assertIn("too slow", failed["reason"])
        self.check(run, process)
        self.assertGreater(self.events(run, "checkpoint_saved")[-1]["time"], self.events(run, "checkpoint_failed")[-1]["time"])

    def test_an_unreadable_checkpoint_is_retried_and_no_older_one_is_used(self):
        self.want = self.undisturbed(*self.keys)
        run, process = self.start("run", *self.keys, "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        for _ in ("an older checkpoint", "the newest one"):
            self.command("console", run, "-c", "save")
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        newest = max(run.glob("checkpoints/step-*"))
        manifest, aside = newest / "manifest.json", run / "aside"
        manifest.rename(aside)
        manifest.symlink_to(manifest)
        for node in status(run)["nodes"]:  # a paused run reads its checkpoint as soon as its nodes are back
            os.kill(node["pid"], signal.SIGKILL)
        self.wait_for(lambda: len(self.events(run, "node_lost")) == 2, "the loss of both nodes and their memory")
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

    def test_a_start_with_an_unreadable_checkpoint_fails_and_uses_no_older_one(self):
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

    def test_a_start_without_its_checkpoints_does_not_begin_at_step_0(self):
        """As if the file system of checkpoint.folder were not mounted."""
        keys = [*self.keys, "--checkpoint.disk_every_steps=50", "--train.max_steps=100"]
        run = self.train("run", *keys)
        aside = run / "aside"
        (run / "checkpoints").rename(aside)
        self.command("train", self.config, *keys, "--train.max_steps=120", f"--run={run}", code=74)
        self.assertIn("is its file system mounted?", self.stderr)
        self.assertEqual(last_step(run), 100)
        (run / "checkpoints").rmdir()
        aside.rename(run / "checkpoints")
        self.command("train", self.config, *keys, "--train.max_steps=120", f"--run={run}")
        self.assertIn("metrics.jsonl: 120 steps", self.verify(run))


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
        self.assertEqual(got, self.undisturbed(*self.keys))

    def said(self, run, text):
        return any(text in log.read_text(errors="replace") for log in (run / "logs").glob("*.log"))

    def test_training_waits_for_a_truncated_file_that_is_restored(self):
        run, process = self.begin()
        self.wait_for(lambda: self.said(run, "trying again"), "a node that tries again")
        self.data.write_bytes(self.content)
        self.check(run, process)
        self.assertFalse(self.events(run, "step_failed"))

    def test_a_file_restored_late_ends_a_generation_only(self):
        run, process = self.begin()
        failed = self.wait_for(lambda: self.events(run, "step_failed"), "a generation that ends")[0]
        self.assertIn(f"{self.data}: ends at byte 100", failed["reason"])
        self.data.write_bytes(self.content)
        self.check(run, process)

    def test_a_bad_token_ends_the_run_at_once_and_its_steps_are_saved(self):
        run, process = self.start("run", *self.keys)
        self.wait_for(lambda: last_step(run) >= 20, "steps")
        self.data.write_bytes(b"\xff\xff" * (len(self.content) // 2))
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 65, said)
        self.assertRegex(said, rf"{self.data}: byte \d+: token id 65535 is beyond the vocabulary of 211; step {last_step(run)} was saved")
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")
        self.assertFalse(self.said(run, "cannot read tokens, trying again"))
        self.data.write_bytes(self.content)
        self.command("resume", run)
        got = self.digest(run)
        self.assertEqual(got, self.undisturbed(*self.keys))

    def test_a_file_that_is_never_restored_ends_the_run_and_is_named(self):
        self.keys.append("--supervision.give_up_after_cycles=1")
        run, process = self.begin()
        self.assertEqual(process.wait(120), 3, process.stdout.read())
        reason = self.events(run, "failed")[0]["reason"]
        self.assertIn("failures in a row without a committed step", reason)
        self.assertIn(f"{self.data}: ends at byte 100", reason)
        self.assertFalse(self.events(run, "trainer_down", "node_lost"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")


if __name__ == "__main__":
    unittest.main()
