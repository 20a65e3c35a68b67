"""LOCK-1: a run outlives its terminal and its launcher; `train` on a run that lives attaches to it or waits for its agents."""

import json
import os
import signal
import subprocess

from common import PROGRAM, Case, kill, last_step, leftovers, lines


class Attach(Case):
    def setUp(self):
        super().setUp()
        self.keys = ["--train.global_batch_size=8", *self.layout(2, 1)]
        self.long = [*self.keys, "--train.max_steps=100000"]

    def begin(self, name, *keys, step=3):
        run, process = self.start(name, *keys)
        self.wait_for(lambda: last_step(run) >= step, f"step {step}")
        return run, process

    def attach(self, run, *keys, command="train"):
        """A second start of the run, once it has said that it is attached."""
        words = [command, str(run)] if command == "resume" else [command, str(self.config), f"--run={run}", *keys]
        log = self.folder / f"attached-{len(list(self.folder.glob('attached-*')))}"
        with open(log, "w") as output:
            process = subprocess.Popen([PROGRAM, *words], cwd=self.folder, stdout=output, stderr=output)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.wait_for(lambda: "attached to this run" in log.read_text(), "the attachment")
        return process, log

    def stop(self, run):
        self.command("console", run, "-c", "stop")

    def begin_paused(self, name, *keys):
        run, process = self.begin(name, *keys)
        self.command("console", run, "-c", "pause")
        return run, process

    def die_while_saving(self, run, process):
        """Kills the launcher; its agents save for two seconds."""
        self.command("console", run, "-c", "inject slow_disk n1 --value 60000 --ms 2000")
        process.kill()
        process.wait()

    def instance(self, run):
        return (run / "control/instance").read_text()

    def test_a_start_waits_for_the_agents_of_a_launcher_that_died_so_no_step_is_lost(self):
        # The second start deposed the supervisor while it saved: all steps since the last checkpoint were lost.
        keys = [*self.keys, "--train.max_steps=100"]
        want = self.undisturbed(*keys)
        run, process = self.begin_paused("run", *keys)
        self.die_while_saving(run, process)
        self.train("run", *keys)
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 101)))
        self.assertEqual([e["kind"] for e in lines(run / "events.jsonl") if e["kind"] in ("started", "stopped", "finished")],
                         ["started", "stopped", "started", "finished"])
        self.assertIn("the process that started run has died; its agents still run: waiting until they have saved", self.stderr)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertFalse(leftovers(run))

    def test_a_start_gives_up_waiting_for_agents_that_do_nothing_and_changes_nothing(self):
        run, process = self.begin("run", *self.long, "--cluster.join_timeout_ms=5000")  # agents that wake without a leader wait as long
        instance = self.instance(run)
        pids = [int(pid) for pid in leftovers(run) if int(pid) != process.pid]
        self.addCleanup(lambda: [kill(int(pid)) for pid in leftovers(run)])
        self.die_while_saving(run, process)
        for pid in pids:  # while they save
            os.kill(pid, signal.SIGSTOP)
        self.train("run", *self.long, "--cluster.join_timeout_ms=1500", code=75)
        self.assertIn("nothing has led them for 1 s", self.stderr)
        self.assertEqual(self.instance(run), instance)
        self.assertNotIn(json.loads(self.command("runs", run, "--json"))[0]["state"], ("stopped", "failed"))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.wait_for(lambda: not leftovers(run), "the end of the agents, which have saved")
        # If they were frozen just after they had stopped, the standby recorded another supervisor's loss when it woke.
        self.assertIn("stopped", [e["kind"] for e in lines(run / "events.jsonl")])
        self.assertEqual(os.readlink(run / "checkpoints/latest"), f"step-{last_step(run):08}")

    def test_a_second_start_attaches_shows_the_progress_and_exits_as_the_run(self):
        run, process = self.begin_paused("run", *self.keys, "--train.max_steps=100")
        instance = self.instance(run)
        second, log = self.attach(run, *self.keys, "--train.max_steps=100")
        third, _ = self.attach(run, command="resume")
        self.command("console", run, "-c", "resume")
        self.assertEqual([second.wait(60), third.wait(60), process.wait(60)], [0, 0, 0])
        self.assertEqual(self.instance(run), instance)
        said = log.read_text()
        self.assertIn(", learning rate ", said)  # a line of a step
        self.assertIn("step 100", said)
        self.assertIn("training loss ", said)  # the summary
        self.assertEqual([e["kind"] for e in lines(run / "events.jsonl")].count("started"), 1)

        run, process = self.begin("stopped", *self.long)
        second, log = self.attach(run, *self.long)
        process.send_signal(signal.SIGTERM)
        self.assertEqual([process.wait(60), second.wait(60)], [75, 75])
        self.assertIn("stopped by SIGTERM", log.read_text())

    def test_ctrl_c_leaves_the_run_training(self):
        run, process = self.begin("run", *self.long)
        second, log = self.attach(run, *self.long)
        second.send_signal(signal.SIGINT)
        self.assertEqual(second.wait(60), -signal.SIGINT)
        self.assertRegex(log.read_text(), "left run, which trains on; to stop it: .* console run -c stop")
        step = last_step(run)
        self.wait_for(lambda: last_step(run) > step + 2, "further steps")
        self.stop(run)
        self.assertEqual(process.wait(60), 0)

    def test_another_configuration_is_not_ignored_but_refused(self):
        run, process = self.begin("run", *self.long)
        self.command("train", self.config, f"--run={run}", *self.long, "--checkpoint.keep=7", code=78)
        self.assertIn("checkpoint.keep is 3 there, not 7", self.stderr)
        self.command("train", self.config, f"--run={run}", *self.long, "--run.seed=7", code=78)
        self.assertIn("run.seed was 1337 and is now 7", self.stderr)
        self.stop(run)
        self.assertEqual(process.wait(60), 0)

    def test_an_attached_start_continues_the_run_of_a_launcher_that_dies(self):
        keys = [*self.keys, "--train.max_steps=100"]
        run, process = self.begin_paused("run", *keys)
        second, log = self.attach(run, *keys)
        self.die_while_saving(run, process)
        self.assertEqual(second.wait(120), 0, log.read_text())
        self.assertIn("the process that started the run has died: its agents save and end", log.read_text())
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 101)))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_the_end_of_the_terminal_does_not_end_the_run(self):
        """As with SSH: `train` in a pseudoterminal, which goes away."""
        main, other = os.openpty()
        run = self.folder / "run"
        process = subprocess.Popen(["setsid", "-c", "-w", PROGRAM, "train", str(self.config), f"--run={run}", *self.long],
                                   cwd=self.folder, stdin=other, stdout=other, stderr=other)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        os.close(other)
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        os.close(main)  # the kernel sends SIGHUP to what runs in the terminal
        self.wait_for(lambda: (run / "logs/train.log").exists() and "the terminal is gone" in (run / "logs/train.log").read_text(),
                      "the launcher's log")
        second, log = self.attach(run, command="resume")
        step = last_step(run)
        self.wait_for(lambda: last_step(run) > step + 2, "further steps")
        self.stop(run)
        self.assertEqual([second.wait(60), process.wait(60)], [0, 0])
        self.assertIn("stopped", log.read_text())
        text = (run / "logs/train.log").read_text()
        self.assertIn("to continue: ", text)
        self.assertNotIn("\033", text)
        self.assertFalse(leftovers(run))

    def test_detach_starts_the_run_in_the_background(self):
        said = self.command("train", self.config, "--run=run", *self.keys, "--train.max_steps=100000", "--detach", timeout=60)
        run = self.folder / "run"
        self.assertRegex(said, r"run trains in the background\n  its progress +.* resume run\n  to stop it +.* console run -c stop\n")
        self.assertTrue(leftovers(run))
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        self.assertIn("run trains already", self.command("resume", "run", "--detach"))
        second, log = self.attach(run, command="resume")
        self.stop(run)
        self.assertEqual(second.wait(60), 0)
        self.wait_for(lambda: not leftovers(run), "the end of all processes")
        self.assertIn("to continue: ", (run / "logs/train.log").read_text())
        self.command("resume", "run", "--detach", f"--train.max_steps={last_step(run) + 5}")
        self.wait_for(lambda: not leftovers(run), "the end of all processes")
        self.assertEqual(lines(run / "events.jsonl")[-1]["kind"], "finished")
        self.assertIn(", learning rate ", self.command("logs", "run"))
        # What is wrong before the start is said, not written into a log.
        self.command("train", self.config, "--run=other", "--detach", "--cluster.nodes=0", code=78)
        self.command("train", self.config, "--run=other", "--detach", *self.long, code=64,
                     env={"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
        self.assertFalse((self.folder / "other").exists())
