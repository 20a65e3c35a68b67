"""LEAD-1: the supervisor dies, dies together with its standby, or continues after it was deposed. Training does not pause."""

import os
import pathlib
import signal
import subprocess
import unittest
import unittest.mock

from common import BIN, Case, events, kill, kill_all, last_step, leader, leftovers, lines, status, trainer_pids

STEPS = 150


class Leadership(Case):
    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=16", *self.layout(2, 2)]

    def digest_without_faults(self):
        return self.undisturbed("--train.global_batch_size=16", f"--train.max_steps={STEPS}")

    def begin(self, steps, *more):
        """Starts a run, slows it down and waits for some steps and a standby."""
        run, process = self.start("run", *self.keys, f"--train.max_steps={steps}", *more)
        self.slow_down(run)
        self.wait_for(lambda: last_step(run) >= 3 and self.standby(run), "a standby")
        return run, process

    def standby(self, run):
        document = status(run)
        return document and document["standby"] and document["supervisor"]["pid"] != document["standby"]["pid"] and document["standby"]

    def succeeded(self, run, term):
        """Waits until a later term leads and has a standby. Returns its number."""
        def led():  # the first one after `term` may die, too
            number, pid, _ = leader(run)
            return number > term and status(run)["supervisor"]["pid"] == pid and self.standby(run) and number
        return self.wait_for(led, f"a term after {term} with a standby")

    def check(self, run, process, want, generations=1):
        """Checks the run's end: same bits, no step and no sample twice, no process restarted."""
        self.assertEqual(process.wait(180), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        metrics = lines(run / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, STEPS + 1)))
        self.assertEqual(len({m["generation"] for m in metrics}), generations)
        self.assertFalse(events(run, "trainer_down", "node_lost"))
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")

    def test_the_standby_takes_over(self):
        want = self.digest_without_faults()
        run, process = self.begin(STEPS)
        trainers, standby = trainer_pids(run), self.standby(run)
        term, pid, node = leader(run)
        self.assertEqual((node, standby["node"]), ("n0", "n1"))
        control = run / "control"
        room = self.wait_for(lambda: list(control.glob(f"room-*-n1-{standby['pid']}")), "room for a claim")[0]
        room = room.stat().st_ino
        kill(pid)
        self.wait_for(lambda: leader(run)[0] > term, "the next term")
        self.assertEqual(leader(run)[1:], (standby["pid"], "n1"))
        self.assertIn(room, [claim.stat().st_ino for claim in control.glob("term-*")])
        self.succeeded(run, term)
        self.assertEqual(self.standby(run)["node"], "n0")
        self.assertEqual(trainer_pids(run), trainers)
        self.go_on()
        self.check(run, process, want)
        self.assertEqual(len(events(run, "took_over")), 1)
        self.assertEqual(len(events(run, "supervisor_lost")), 1)
        self.assertEqual(len(events(run, "standby_appointed")), 2)

    @unittest.skipUnless(os.geteuid() == 0, "only root can mount a small disk")
    def test_the_standby_takes_over_on_a_full_disk(self):
        """Its claim has room there. A trainer that dies then is replaced, too."""
        want = self.digest_without_faults()
        folder = self.folder / "run"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=755", "none", folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder])
        run, process = self.begin(STEPS, "--supervision.warm_processes=1")
        term, pid, _ = leader(run)
        self.wait_for(lambda: list((run / "control").glob("room-*")), "room for a claim")
        filler = run / "filler"
        with self.assertRaises(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        kill(pid)
        self.wait_for(lambda: leader(run)[0] > term, "the next term")
        kill(next(iter(trainer_pids(run).values())))
        filler.unlink()
        self.go_on()
        self.assertEqual(process.wait(180), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual(len(events(run, "took_over")), 1)

    def test_five_supervisors_in_a_row(self):
        want = self.digest_without_faults()
        run, process = self.begin(STEPS)
        term = 1
        for _ in range(5):
            kill(leader(run)[1])
            term = self.succeeded(run, term)
        self.assertEqual(term, 6)
        self.go_on()
        self.check(run, process, want)
        self.assertEqual(len(events(run, "took_over")), 5)

    def test_supervisor_and_standby_are_killed_at_once(self):
        want = self.digest_without_faults()
        run, process = self.begin(STEPS)
        trainers = trainer_pids(run)
        term, pid, _ = leader(run)
        kill(pid, self.standby(run)["pid"])
        self.succeeded(run, term)
        self.assertEqual(trainer_pids(run), trainers)
        self.go_on()
        self.check(run, process, want)

    def test_a_stopped_supervisor_that_continues_late_has_no_effect(self):
        want = self.digest_without_faults()
        run, process = self.begin(STEPS)
        term, pid, _ = leader(run)
        os.kill(pid, signal.SIGSTOP)
        self.succeeded(run, term)
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 5, "steps under the new supervisor")
        os.kill(pid, signal.SIGCONT)
        self.wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the deposed supervisor to end")
        self.assertIn("deposed", (run / "logs/supervisor-n0.log").read_text())
        self.go_on()
        self.check(run, process, want)

    def unreadable_ledger(self, run):
        """From now on a new supervisor cannot read the ledger. Returns a function that ends this."""
        ledger, aside = run / "ledger.jsonl", run / "aside"
        ledger.rename(aside)
        ledger.symlink_to(ledger)
        return lambda: aside.rename(ledger)

    def test_a_supervisor_that_is_stopped_while_it_prepares_has_no_effect(self):
        """It had claimed its term and read the files' sizes. When it woke, it cut off what its successor had written since."""
        run, process = self.begin(100000)
        term, pid, _ = leader(run)
        restore = self.unreadable_ledger(run)
        kill(pid)
        self.wait_for(lambda: leader(run)[0] > term, "a second supervisor, which retries")
        term, pid, node = leader(run)
        os.kill(pid, signal.SIGSTOP)
        restore()
        self.succeeded(run, term)
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 5, "steps under the third supervisor")
        os.kill(pid, signal.SIGCONT)
        self.wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the second supervisor to end")
        self.assertIn("another supervisor leads", (run / f"logs/supervisor-{node}.log").read_text())
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertIn("each sample exactly once", self.verify(run))
        metrics = lines(run / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, len(metrics) + 1)))
        self.assertFalse(events(run, "trainer_down", "node_lost"))

    def test_a_supervisor_that_cannot_prepare_leaves_the_agents_their_memory(self):
        """JOB-1: it ended all agents, and with them the only copies of the newest steps."""
        run, process = self.begin(100000)
        trainers = trainer_pids(run)
        restore = self.unreadable_ledger(run)
        kill(leader(run)[1], self.standby(run)["pid"])
        self.wait_for(lambda: events(run, "resigned"), "a supervisor that resigns", 120)
        self.assertIn("ledger.jsonl: Too many levels of symbolic links", events(run, "resigned")[-1]["reason"])
        self.assertIsNone(process.poll())
        restore()
        term = leader(run)[0]
        self.succeeded(run, term - 1)
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 5, "steps under the next supervisor")
        self.assertEqual(trainer_pids(run), trainers)
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        metrics = lines(run / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, len(metrics) + 1)))
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(events(run, "trainer_down", "node_lost"))

    def test_the_supervisor_dies_between_the_last_step_and_its_checkpoint(self):
        want = self.digest_without_faults()
        faults = ", ".join(f'{{ step = {STEPS - 30}, kind = "slow_disk", target = "{node}" }}' for node in ("n0", "n1"))
        run, process = self.begin(STEPS, f"--inject.faults=[{faults}]", "--checkpoint.disk_every_steps=0")
        self.go_on()
        self.wait_for(lambda: last_step(run) == STEPS, "the last step")
        self.assertFalse(events(run, "checkpoint_saved"))
        kill(leader(run)[1])
        self.check(run, process, want)
        self.assertEqual(len(events(run, "checkpoint_saved")), 1)
        self.assertFalse(events(run, "checkpoint_failed"))

    def test_the_supervisor_dies_before_and_during_a_pause(self):
        """The second supervisor repeats a fence; the trainers answer it after the pause has ordered them to leave."""
        run, process = self.begin(100000)
        term = 1
        kill(leader(run)[1])
        term = self.succeeded(run, term)
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "all trainers to be idle")
        kill(leader(run)[1])
        self.succeeded(run, term)
        step = last_step(run)
        self.command("console", run, "-c", "resume")
        self.wait_for(lambda: last_step(run) > step + 5, "training")
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())

    def test_a_single_node_restarts_its_supervisor(self):
        keys = ["--train.global_batch_size=8", *self.layout(1, 2), f"--train.max_steps={STEPS}"]
        want = self.undisturbed(*keys)
        run, process = self.start("run", *keys)
        self.slow_down(run)
        term, pid, _ = leader(run)
        kill(pid)
        self.wait_for(lambda: leader(run)[0] > term, "the next term")
        self.go_on()
        self.check(run, process, want)

    def test_train_resumes_after_all_processes_were_killed(self):
        more = ["--checkpoint.disk_every_steps=10"]
        want = self.digest_without_faults()
        run, process = self.begin(STEPS, *more)
        self.wait_for(lambda: (run / "checkpoints/latest").exists(), "a checkpoint")
        process.kill()  # first the launcher, which would restart agents
        kill_all(run)
        process.wait(10)
        self.train("run", *self.keys, f"--train.max_steps={STEPS}", *more)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))

    def all_but_the_launcher_die(self, meanwhile=lambda run: None):
        """JOB-1: right after the first checkpoint was published, so that no state page may name it. The run goes on from there."""
        keys = ["--checkpoint.disk_every_steps=50", "--checkpoint.keep=1"]
        want = self.digest_without_faults()
        run, process = self.begin(STEPS, *keys)
        pids = [status(run)["supervisor"]["pid"], self.standby(run)["pid"], *(n["pid"] for n in status(run)["nodes"])]
        self.go_on()
        self.wait_for(lambda: list(run.glob("checkpoints/step-*")), "a checkpoint")
        kill(*pids)
        meanwhile(run)
        self.assertEqual(process.wait(180), 0, process.stdout.read())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        begun = [e["reason"] for e in events(run, "joined", "layout_changed")]
        self.assertEqual(len([r for r in begun if "initial values" in r]), 1, begun)
        self.assertTrue([r for r in begun if "from checkpoint" in r], begun)

    def test_a_checkpoint_that_no_state_page_names_is_used(self):
        self.all_but_the_launcher_die()

    def test_a_checkpoint_that_cannot_be_read_at_first_is_used(self):
        """One error of the folder made the next supervisor begin with initial values."""
        def unreadable(run):
            folder, aside = run / "checkpoints", run / "aside"
            folder.rename(aside)
            folder.symlink_to(folder)
            self.wait_for(lambda: any("trying again" in log.read_text(errors="replace") for log in (run / "logs").glob("supervisor-*.log")),
                          "a supervisor that retries")
            folder.unlink()
            aside.rename(folder)
        self.all_but_the_launcher_die(unreadable)

    def test_claims_that_fail_cost_no_step(self):
        """As on a full disk: nothing but a claim makes a link."""
        want = self.digest_without_faults()
        state = self.folder / "state"
        state.mkdir()
        faults = {"LD_PRELOAD": str(BIN / "libfile_faults.so"),
                  "SIMPLESCALE_FILE_FAULTS": f"folder={self.folder}/run/control;state={state};seed=1;fail.link=0.7"}
        with unittest.mock.patch.dict(os.environ, faults):
            run, process = self.begin(STEPS)
            failed = len(lines(state / "faults.jsonl"))
            term, pid, _ = leader(run)
            kill(pid, self.standby(run)["pid"])
            self.wait_for(lambda: leader(run)[0] > term, "the next term")
        self.go_on()
        self.assertEqual(process.wait(180), 0, process.stdout.read())
        self.assertGreater(len(lines(state / "faults.jsonl")), failed)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(events(run, "trainer_down", "node_lost"))

    def test_a_killed_launcher_leaves_no_processes_and_the_run_resumes(self):
        want = self.digest_without_faults()
        run, process = self.begin(STEPS)
        process.kill()
        process.wait(10)
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
        self.train("run", *self.keys, f"--train.max_steps={STEPS}")
        self.assertEqual(self.digest(run), want)
