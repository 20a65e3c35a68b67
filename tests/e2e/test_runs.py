"""A run ends, is interrupted and resumed, loses trainers (JOB-1, JOB-2, JOB-6), and is never overwritten."""

import fcntl
import json
import os
import shutil
import signal
import subprocess

from common import PROGRAM, Case, kill, last_step, leftovers, lines, status, trainer_pids


class Runs(Case):
    def setUp(self):
        super().setUp()
        self.two_by_two = ["--train.global_batch_size=16", *self.layout(2, 2)]
        self.one = ["--train.global_batch_size=16", *self.layout(1, 1)]  # where no process dies
        self.steps = "--train.max_steps=60"

    def reference(self):
        return self.undisturbed(*self.two_by_two, self.steps)

    def test_the_files_that_a_run_leaves(self):
        run = self.train("run", *self.two_by_two, "--train.max_steps=8", "--checkpoint.disk_every_steps=3", "--checkpoint.keep=2")
        self.assertIn("each sample exactly once", self.verify(run))
        metrics = lines(run / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, 9)))
        for key in "time step iter loss grad_norm lr step_ms tokens tokens_per_second mfu remaining_s generation".split():
            self.assertIn(key, metrics[0])
        self.assertEqual(sorted(p.name for p in (run / "checkpoints").iterdir()), ["latest", "owner", "step-00000006", "step-00000008"])
        self.assertEqual(os.readlink(run / "checkpoints/latest"), "step-00000008")
        document = json.loads(self.command("status", run, "--json"))
        self.assertEqual((document["state"], document["step"], document["max_steps"]), ("finished", 8, 8))
        self.assertEqual(len(document["nodes"]), 2)
        self.assertFalse(leftovers(run))
        kinds = [e["kind"] for e in lines(run / "events.jsonl")]
        for kind in ("started", "validated", "checkpoint_saved", "finished"):
            self.assertIn(kind, kinds)

    def test_an_interrupted_and_resumed_run_has_the_same_bits(self):
        want = self.reference()
        run, process = self.start("run", *self.two_by_two, self.steps)
        self.wait_for(lambda: last_step(run) >= 10, "step 10")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
        stopped = last_step(run)
        self.assertLess(stopped, 60)
        self.assertTrue((run / "checkpoints/latest").exists())
        self.assertFalse(leftovers(run))
        self.train("run", *self.two_by_two, self.steps)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_run_resumed_in_another_layout_has_the_same_bits(self):
        want = self.reference()
        run, process = self.start("run", *self.two_by_two, self.steps)
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
        self.train("run", "--train.global_batch_size=16", *self.layout(1, 4, "full_shard"), self.steps)
        self.assertEqual(self.digest(run), want)

    def test_a_killed_and_resumed_run_has_the_same_bits(self):
        want = self.reference()
        run, process = self.start("run", *self.two_by_two, self.steps, "--checkpoint.disk_every_steps=4")
        self.wait_for(lambda: last_step(run) >= 14, "step 14")
        process.kill()
        process.wait(10)
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
        self.train("run", *self.two_by_two, self.steps, "--checkpoint.disk_every_steps=4")
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_killed_trainer_costs_no_step_and_no_bit(self):
        want = self.reference()
        run, process = self.start("run", *self.two_by_two, self.steps, "--supervision.warm_processes=1")
        for victim, at in (("n1.0", 6), ("n0.1", 20), ("n0.0", 35)):
            self.wait_for(lambda: last_step(run) >= at, f"step {at}")
            kill(trainer_pids(run)[victim])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        metrics = lines(run / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, 61)), "no committed step was trained twice")
        events = lines(run / "events.jsonl")
        self.assertEqual(len({e["incident"] for e in events if e["incident"]}), 3)
        self.assertEqual(sum(e["phase"] == "resume" for e in events), 3)

    def test_a_stopped_trainer_is_replaced(self):
        want = self.reference()
        run, process = self.start("run", *self.two_by_two, self.steps, "--supervision.silence_ms=1000")
        self.wait_for(lambda: last_step(run) >= 6, "step 6")
        self.wait_for(lambda: trainer_pids(run).get("n1.1"), "a process of n1.1")
        os.kill(trainer_pids(run)["n1.1"], signal.SIGSTOP)
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_train_as_tasks_of_a_slurm_job(self):
        """One agent per task, as srun starts them. They find each other through the run folder."""
        run = self.folder / "job"
        environment = {**os.environ, "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}
        tasks = [subprocess.Popen([PROGRAM, "train", str(self.config), f"--run={run}", *self.two_by_two, self.steps],
                                  cwd=self.folder, env={**environment, "SLURM_PROCID": str(i)}, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) for i in (1, 0)]
        self.assertEqual([t.wait(120) for t in tasks], [0, 0])
        self.assertEqual(self.digest(run), self.reference())

    def test_a_terminated_job_saves_and_exits_with_75(self):
        run = self.folder / "job"
        environment = {**os.environ, "SLURM_NTASKS": "2", "SLURM_JOB_ID": "78", "SLURM_STEP_ID": "0"}
        tasks = [subprocess.Popen([PROGRAM, "train", str(self.config), f"--run={run}", *self.two_by_two, "--train.max_steps=100000"],
                                  cwd=self.folder, env={**environment, "SLURM_PROCID": str(i)}, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) for i in (0, 1)]
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        for task in tasks:
            task.send_signal(signal.SIGTERM)
        self.assertEqual([t.wait(60) for t in tasks], [75, 75])
        self.assertTrue((run / "checkpoints/latest").exists())

    def test_an_agent_that_starts_after_the_end_ends_with_the_code_of_the_run(self):
        run, process = self.start("run", *self.two_by_two, "--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        process.terminate()
        self.assertEqual(process.wait(60), 75)
        left = [p.name for p in (run / "control").glob("term-*")], (run / "events.jsonl").read_text()
        late = subprocess.run([PROGRAM, "agent", "--run", str(run), "--node", "1"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "SIMPLESCALE_INSTANCE": (run / "control/instance").read_text().strip()})
        self.assertEqual(late.returncode, 75, late.stderr)
        self.assertIn("this start of the run has ended: ", late.stdout + late.stderr)
        self.assertEqual(([p.name for p in (run / "control").glob("term-*")], (run / "events.jsonl").read_text()), left)

    def test_nothing_that_an_earlier_start_wrote_is_shown_as_living(self):
        run = self.train("run", *self.one, "--train.max_steps=4")
        page, instance = run / "control/status.json", run / "control/instance"
        document = status(run)
        self.assertEqual(document["instance"] + "\n", instance.read_text())

        def assert_shown(state):
            shown = json.loads(self.command("status", run, "--json"))
            self.assertEqual((shown["state"], {n["state"] for n in shown["nodes"]}, shown["supervisor"]["pid"]), (state, {"ended"}, 0))

        assert_shown("finished")
        with (run / "control/lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as the launcher of a start that prepares, or uploads
            assert_shown("finished")
            instance.write_text("0" * 16 + "\n")  # it begins
            assert_shown("starting")
            self.assertEqual(json.loads(self.command("runs", run, "--json"))[0]["state"], "starting")
            page.write_text(json.dumps(document | {"state": "training"}))  # of a start that was killed
            assert_shown("starting")
        assert_shown("failed")

    def test_trainers_that_always_die_end_the_run_with_exit_code_3(self):
        """The first node is drained when its restart budget is exhausted, and the other group continues; then that one, too."""
        run, process = self.start("run", *self.two_by_two, "--train.max_steps=100000", "--supervision.max_restarts=2")
        for node in ("n0", "n1"):
            seen = set()
            while process.poll() is None and f"{node} drained" not in {f"{e['subject']} {e['kind']}" for e in lines(run / "events.jsonl")}:
                pid = trainer_pids(run).get(f"{node}.0")
                if pid and pid not in seen:
                    seen.add(pid)
                    kill(pid)
        self.assertEqual(process.wait(60), 3)
        self.assertEqual(lines(run / "events.jsonl")[-1]["kind"], "failed")
        self.assertFalse(leftovers(run))

    def test_a_damaged_checkpoint_is_named_and_the_older_one_is_used(self):
        want = self.reference()
        run = self.train("run", *self.one, self.steps, "--checkpoint.disk_every_steps=20")
        self.assertEqual(self.digest(run), want)
        shard = next((run / "checkpoints/step-00000060").glob("shard-*"))
        with open(shard, "r+b") as file:
            file.seek(5000)
            file.write(b"\xff\x00\xff")
        self.train("run", *self.one, self.steps, "--checkpoint.disk_every_steps=20")
        self.assertIn(shard.name, "".join(log.read_text() for log in (run / "logs").glob("supervisor*.log")))
        self.assertEqual(self.digest(run), want)

    def test_other_folders_and_runs_are_not_overwritten(self):
        run = self.train("run", *self.one, "--train.max_steps=3")
        before = self.digest(run)
        self.train("run", *self.one, "--train.max_steps=3", "--run.seed=7", code=78)
        self.train("run", *self.one, "--train.max_steps=3", "--run.resume=never", code=78)
        other = self.folder / "precious"
        other.mkdir()
        (other / "thesis.txt").write_text("do not lose")
        self.train("precious", *self.one, code=78)
        self.assertEqual((other / "thesis.txt").read_text(), "do not lose")
        self.train("run", *self.one, "--train.max_steps=3")
        self.assertEqual(self.digest(run), before)

    def test_a_checkpoint_folder_belongs_to_one_run(self):
        kept = self.folder / "kept"
        here = [*self.one, "--train.max_steps=6", f"--checkpoint.folder={kept}"]
        run = self.train("run", *here)
        want, latest = self.digest(run), os.readlink(kept / "latest")
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse((run / "checkpoints").exists())
        self.train("other", *here, "--train.learning_rate=0.5", code=78)
        self.assertIn("holds the checkpoints of another run", self.stderr)
        self.assertEqual(os.readlink(kept / "latest"), latest)
        around = self.train("around", *self.one, "--train.max_steps=6")
        self.train("other", *self.one, "--train.max_steps=6", f"--checkpoint.folder={around}/checkpoints", code=78)
        self.assertIn(f"holds the checkpoints of another run, {around};", self.stderr)
        moved = run.rename(self.folder / "moved")
        self.train("moved", *here)
        self.assertEqual(self.digest(moved), want)

    def test_a_checkpoint_of_another_run_is_not_used(self):
        """CHECKPOINT-7, in a folder that both once had: neither resumed from, nor replaced, removed or called valid."""
        keys = [*self.one, "--checkpoint.disk_every_steps=2", "--checkpoint.keep=2", "--train.schedule=constant", "--train.warmup_steps=0"]
        other = self.train("other", *keys, "--train.max_steps=8", "--run.seed=7")
        run = self.train("run", *keys, "--train.max_steps=4")
        want = self.digest(self.train("want", *keys, "--train.max_steps=10"))
        shutil.copytree(other / "checkpoints/step-00000008", run / "checkpoints/step-00000008")
        self.assertIn("step-00000008: another run made this checkpoint", self.command("verify", run, code=65))
        self.command("resume", run, "--train.max_steps=10")
        self.assertIn("step-00000008: another run made this checkpoint", (run / "events.jsonl").read_text())
        self.assertEqual(self.digest(run), want)
        self.assertEqual((other / "checkpoints/step-00000008/manifest.json").read_bytes(),
                         (run / "checkpoints/step-00000008/manifest.json").read_bytes())
        self.assertTrue((run / "checkpoints/step-00000006").exists())  # keep = 2 counts its own only
        shutil.rmtree(run / "checkpoints/step-00000008")
        self.verify(run)
        alone = self.folder / "alone"
        shutil.copytree(other / "checkpoints/step-00000008", alone / "checkpoints/step-00000008")
        self.train("alone", *keys, "--train.max_steps=10", code=65)
        self.assertIn("step-00000008: another run made this checkpoint", self.stderr)
        moved = run.rename(self.folder / "elsewhere")
        self.command("resume", moved, "--train.max_steps=12")
        self.verify(moved)

    def test_a_checkpoint_beyond_the_last_step_is_refused(self):
        run = self.train("run", *self.one, "--train.max_steps=6")
        for part in "checkpoints", "control":  # its identity is control/id
            shutil.copytree(run / part, self.folder / "shorter" / part, symlinks=True)
        self.train("shorter", *self.one, "--train.max_steps=3", code=78)
        self.assertIn("step-00000006 is beyond the configuration's last step, 3", self.stderr)

    def test_interrupted_twice_stops_at_once(self):
        run, process = self.start("run", *self.one, "--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 2, "step 2")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        self.assertFalse(leftovers(run))
