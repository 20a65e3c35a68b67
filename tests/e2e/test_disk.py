"""Full or slow disks: saving fails or waits, training continues, and saving works again afterwards. Unreadable token files:
training waits for them for a limited time, and no process dies. Unreadable checkpoints: no older one is used (JOB-1)."""

import signal
import subprocess

from common import BIN, PROGRAM, Case, events, kill, last_step, leftovers, lines, status


class Disks(Case):
    STEPS = 100

    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1), f"--train.max_steps={self.STEPS}",
                     "--checkpoint.disk_every_steps=5"]

    def wanted(self):
        return self.undisturbed("--train.global_batch_size=8", f"--train.max_steps={self.STEPS}")

    def begin(self, *more):
        """A run that is slowed down."""
        run, process = self.start("run", *self.keys, *more)
        self.slow_down(run)
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        return run, process

    def endless(self):
        """Without checkpoints."""
        run, process = self.start("run", *self.keys, "--train.max_steps=100000", "--checkpoint.disk_every_steps=0")
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        return run, process

    def inject(self, run, fault):
        self.command("console", run, "-c", f"inject {fault}")

    def check(self, run, process):
        self.go_on()
        self.assertEqual(process.wait(90), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.wanted())
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, self.STEPS + 1)))
        self.assertFalse(events(run, "trainer_down", "node_lost", "fenced"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")

    def test_a_full_disk_stops_saving_but_not_training(self):
        run, process = self.begin()
        self.inject(run, "disk_full n0 --ms 3600000")
        self.wait_for(lambda: [e for e in events(run, "checkpoint_failed") if "No space left on device" in e["reason"]],
                      "a failed checkpoint")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 3, "steps without checkpoints")
        self.inject(run, "disk_full n0 --ms 1")
        self.check(run, process)
        self.assertGreater(events(run, "checkpoint_saved")[-1]["time"], events(run, "checkpoint_failed")[-1]["time"])

    def test_a_second_sigterm_does_not_cut_the_last_save_short(self):
        run, process = self.endless()
        for node in ("n0", "n1"):
            self.inject(run, f"slow_disk {node} --value 200 --ms 20000")
        process.send_signal(signal.SIGTERM)
        self.wait_for(lambda: events(run, "stop_requested"), "the stop")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75, process.stdout.read())
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")

    def test_a_write_that_fails_in_the_middle_of_a_line_costs_no_line(self):
        run, state = self.folder / "run", self.folder / "state"
        state.mkdir()
        faults = f"folder={run}/metrics.jsonl;state={state};seed=1;tear.write=0.5"
        self.command("train", self.config, f"--run={run}", *self.keys, "--train.max_steps=30",
                     env={"LD_PRELOAD": str(BIN / "libfile_faults.so"), "SIMPLESCALE_FILE_FAULTS": faults})
        self.assertTrue([line for line in lines(state / "faults.jsonl") if line["error"]])
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 31)))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_full_disk_that_has_room_again_costs_no_checkpoint(self):
        """Also the last one, whose failure would end the run without its newest steps."""
        run, process = self.endless()
        for node in ("n0", "n1"):
            self.inject(run, f"disk_full {node} --ms 1200")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")
        self.assertFalse(events(run, "checkpoint_failed"))
        self.assertTrue(any("trying again" in log.read_text(errors="replace") for log in (run / "logs").glob("*.log")))
        self.assertFalse(list(run.glob("checkpoints/tmp-*")))

    def test_the_last_step_stays_in_memory_until_a_full_disk_has_room(self):
        """A save is tried again for 3 s; then the trainers hold the step, and save it again 5 s later."""
        run, process = self.endless()
        for node in ("n0", "n1"):
            self.inject(run, f"disk_full {node} --ms 3600000")
        process.send_signal(signal.SIGINT)
        self.wait_for(lambda: events(run, "checkpoint_failed"), "a save that fails")
        for node in ("n0", "n1"):
            self.inject(run, f"disk_full {node} --ms 1")
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertTrue(events(run, "save_again"))
        self.assertEqual((run / "checkpoints/latest").readlink().name, f"step-{last_step(run):08}")
        self.assertFalse(list(run.glob("checkpoints/tmp-*")))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_slow_disk_delays_saving_but_not_training(self):
        """Writes hang for the 1.5 s of the fault."""
        run, process = self.begin("--checkpoint.disk_every_steps=2")
        self.inject(run, "slow_disk n0 --value 60000 --ms 1500")
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 3, "steps while the disk hangs")
        failed = self.wait_for(lambda: events(run, "checkpoint_failed"), "a skipped checkpoint")[0]
        self.assertIn("too slow", failed["reason"])
        self.check(run, process)
        self.assertGreater(events(run, "checkpoint_saved")[-1]["time"], events(run, "checkpoint_failed")[-1]["time"])

    def test_an_unreadable_checkpoint_is_retried_and_no_older_one_is_used(self):
        run, process = self.begin("--checkpoint.disk_every_steps=0")
        for _ in ("an older checkpoint", "the newest one"):
            self.command("console", run, "-c", "save")
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        newest = max(run.glob("checkpoints/step-*"))
        manifest, aside = newest / "manifest.json", run / "aside"
        manifest.rename(aside)
        manifest.symlink_to(manifest)
        kill(*(node["pid"] for node in status(run)["nodes"]))  # a paused run reads its checkpoint as soon as its nodes are back
        self.wait_for(lambda: len(events(run, "node_lost")) == 2, "the loss of both nodes and their memory")
        self.command("console", run, "-c", "resume")
        found = self.wait_for(lambda: events(run, "bad_disk"), "a checkpoint that cannot be read")[0]
        self.assertIn(f"{manifest}: Too many levels of symbolic links", found["reason"])
        aside.rename(manifest)
        self.assertEqual(process.wait(90), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.wanted())
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(events(run, "checkpoint_skipped", "drained"))
        begun = [r for r in (e["reason"] for e in events(run, "joined", "layout_changed")) if "from checkpoint" in r]
        self.assertGreater(len(begun), 1)
        for reason in begun:
            self.assertIn(f"step {int(newest.name[5:])} from checkpoint", reason)
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")

    def test_a_start_that_cannot_read_its_checkpoint_uses_no_older_one_and_one_without_any_does_not_begin_at_step_0(self):
        """The latter as if the file system of checkpoint.folder were not mounted. Both starts try for 20 s, at once."""
        keys = [*self.keys, "--checkpoint.disk_every_steps=10", "--train.max_steps=20"]
        unreadable, gone = (self.train(name, *keys) for name in ("unreadable", "gone"))
        manifest = unreadable / "checkpoints/step-00000020/manifest.json"
        manifest.rename(unreadable / "aside")
        manifest.symlink_to(manifest)
        (gone / "checkpoints").rename(gone / "aside")
        words = [PROGRAM, "train", self.config, *keys]
        starts = [subprocess.Popen([*words, f"--run={run}", *more], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                  for run, more in ((unreadable, []), (gone, ["--train.max_steps=25"]))]
        said = [start.communicate(timeout=120)[1] for start in starts]
        self.assertEqual([start.returncode for start in starts], [74, 74], said)
        self.assertIn(f"{manifest}: Too many levels of symbolic links", said[0])
        self.assertIn("move", said[0])
        self.assertIn("is its file system mounted?", said[1])
        self.assertEqual([last_step(unreadable), last_step(gone)], [20, 20])
        (unreadable / "aside").rename(manifest)
        self.assertIn("metrics.jsonl: 20 steps", self.verify(unreadable))
        (gone / "checkpoints").rmdir()
        (gone / "aside").rename(gone / "checkpoints")
        self.train("gone", *keys, "--train.max_steps=25")
        self.assertIn("metrics.jsonl: 25 steps", self.verify(gone))


class TokenFiles(Case):
    def setUp(self):
        super().setUp()
        self.content = self.data.read_bytes()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1), "--train.max_steps=100", "--checkpoint.disk_every_steps=0",
                     "--train.validation_samples=0"]

    def begin(self):
        run, process = self.start("run", *self.keys)
        self.slow_down(run)
        with open(self.data, "r+b") as file:
            file.truncate(100)
        return run, process

    def check(self, run, process):
        self.go_on()
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertFalse(events(run, "trainer_down", "node_lost"))
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
        self.assertFalse(events(run, "step_failed"))

    def test_a_file_restored_late_ends_a_generation_only(self):
        run, process = self.begin()
        failed = self.wait_for(lambda: events(run, "step_failed"), "a generation that ends")[0]
        self.assertIn(f"{self.data}: ends at byte 100", failed["reason"])
        self.data.write_bytes(self.content)
        self.check(run, process)

    def test_a_bad_token_ends_the_run_at_once_and_its_steps_are_saved(self):
        run, process = self.start("run", *self.keys)
        self.slow_down(run)
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
        reason = events(run, "failed")[0]["reason"]
        self.assertIn("failures in a row without a committed step", reason)
        self.assertIn(f"{self.data}: ends at byte 100", reason)
        self.assertFalse(events(run, "trainer_down", "node_lost"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
