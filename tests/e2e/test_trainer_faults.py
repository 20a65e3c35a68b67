"""Trainers fail in every way: the run ends with the same bits (JOB-6) and loses no step (JOB-1)."""

import signal

from common import Case, events, kill, last_step, lines, status, trainer_pids


class TrainerFaults(Case):
    warm = True

    def setUp(self):
        super().setUp()
        self.two_by_two = ["--train.global_batch_size=16", *self.layout(2, 2), "--train.max_steps=60"]

    def run_with(self, *faults, more=()):
        """Trains with these faults, (step, kind, target), and checks that no step is lost. Returns the run's folder."""
        keys = ", ".join(f'{{ step = {step}, kind = "{kind}", target = "{target}" }}' for step, kind, target in faults)
        run = self.train("run", *self.two_by_two, f"--inject.faults=[{keys}]", *more, timeout=120)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 61)))
        return run

    def reference(self):
        return self.undisturbed(*self.two_by_two)

    def test_a_trainer_is_killed_segfaults_and_runs_out_of_memory(self):
        want = self.reference()
        run = self.run_with((5, "kill_trainer", "n1.0"), (20, "segfault_trainer", "n0.1"), (40, "oom_trainer", "n1.1"))
        self.assertEqual(self.digest(run), want)
        self.assertGreaterEqual((run / "logs/n1.0.log").read_text().count("group 1 of 2, shard 0, at step"), 2,
                                "all processes of n1.0 write to its log")

    def test_a_trainer_is_stopped(self):
        want = self.reference()
        run = self.run_with((6, "stop_trainer", "n1.1"))
        self.assertEqual(self.digest(run), want)
        self.assertIn("stopped, silent for", (run / "logs/n1.log").read_text())

    def test_a_trainer_hangs(self):
        want = self.reference()
        run = self.run_with((6, "hang_trainer", "n0.0"), more=["--supervision.progress_timeout_ms=2000"])
        self.assertEqual(self.digest(run), want)
        self.assertIn("stuck at step", (run / "logs/n0.log").read_text())

    def test_the_trainer_at_fault_is_named_and_a_stall_is_shown(self):
        """The trainers that wait for the one that hangs, or that find a NaN in the sum, are not at fault."""
        want = self.reference()
        faults = ['{ step = 6, kind = "nan_loss", target = "n1.0" }', '{ step = 20, kind = "hang_trainer", target = "n0.0" }']
        run, process = self.start("run", *self.two_by_two, f"--inject.faults=[{', '.join(faults)}]")
        stall = self.wait_for(lambda: (status(run) or {}).get("stall"), "a stall in status.json")
        self.assertEqual(stall["waiting_for"], "n0.0")
        self.assertIn(stall["phase"], ("forward", "backward"))
        self.assertIn("waiting for n0.0", self.command("status", run))
        output, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"no step for \d+ s, waiting for n0\.0 \((for|back)ward")
        nan, hang = events(run, "recovered")
        self.assertRegex(nan["subject"], r"^n1\.0: step \d+: loss nan")
        self.assertRegex(hang["subject"], r"^n0\.0: hung in step \d+ \((for|back)ward")
        self.assertGreaterEqual(hang["ms"], 5000, "the time since the last step")
        self.assertGreaterEqual(hang["phases"]["detect"], 5000)
        self.assertEqual(self.digest(run), want)

    def test_a_fault_is_injected_once_even_if_the_run_is_interrupted(self):
        want = self.reference()
        faults = [f'{{ step = {step}, kind = "nan_loss", target = "n1.0" }}' for step in (1, 8, 40)]
        planned = f"--inject.faults=[{', '.join(faults)}]"
        run, process = self.start("run", *self.two_by_two, planned)
        self.wait_for(lambda: last_step(run) >= 12, "step 12")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
        self.train("run", *self.two_by_two, planned)
        self.assertEqual(self.digest(run), want)
        injected = [e["step"] for e in events(run, "injected")]
        self.assertEqual(len(injected), 3, injected)
        self.assertEqual(injected[0], 0)

    def test_a_fence_does_not_wait_for_a_computing_trainer(self):
        """Trainers without sharding compute for seconds without communication. One dies; the others leave at once and survive."""
        long = ["--train.global_batch_size=9000", *self.layout(3, 1, "no_shard"), "--train.max_steps=2", "--train.validation_samples=0"]
        run, process = self.start("run", *long)
        self.wait_for(lambda: last_step(run) >= 1, "step 1")
        before = trainer_pids(run)
        kill(before["n1.0"])
        self.assertEqual(process.wait(170), 0, process.stdout.read())
        kinds = [e["kind"] for e in lines(run / "events.jsonl")]
        self.assertNotIn("fence_ignored", kinds)
        self.assertEqual(kinds.count("trainer_up"), 4)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_warm_process_replaces_a_dead_trainer(self):
        run, process = self.start("run", *self.two_by_two, "--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        before = trainer_pids(run)
        kill(before["n1.0"])
        self.wait_for(lambda: trainer_pids(run)["n1.0"] not in (before["n1.0"], 0), "another process")
        self.wait_for(lambda: "n1/p2 becomes n1.0" in (run / "logs/n1.log").read_text(), "the warm process")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
