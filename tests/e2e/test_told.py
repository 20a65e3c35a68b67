"""What users are told of faults, where they look: a full disk, a run that was killed with all of its processes, a drill on a node that is
not there, a chain of console commands, one cause that brings several failures, `verify` of a run that trains."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import unittest
import urllib.request

from common import PROGRAM, Case, events, kill_all, last_step, leftovers, lines, status


class Told(Case):
    KEYS = ["--train.global_batch_size=8", "--train.max_steps=1000000"]

    def begin(self, *keys, run="run", slow=True):
        run, process = self.start(run, *self.KEYS, *keys)
        self.wait_for(lambda: last_step(run) >= 5 and status(run)["state"] == "training", "steps")
        if slow:
            self.slow_down(run, fault="slow_node")
        return run, process

    def failed(self, *arguments, code):
        """Runs a command that fails; returns what it says on stderr."""
        self.command(*arguments, code=code)
        return self.stderr

    def end(self, run, process):
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")


@unittest.skipUnless(os.geteuid() == 0, "SKIPPED: not root, so no small disk can be mounted")
class FullDisk(Told):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", self.disk], capture_output=True).returncode:
            self.skipTest("SKIPPED: no tmpfs can be mounted")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])

    def fill(self):
        with open(self.disk / "filler", "wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    def test_a_full_disk_is_told_on_the_terminal_by_status_console_and_page(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        run, process = self.begin(*self.layout(2, 1), f"--metrics.http_port={port}", run="disk/run")
        page = json.loads((run / "control/http.json").read_text())
        self.fill()
        for line in process.stdout:
            if "its disk is full" in line:
                break
        self.assertIn("s old", line)
        self.assertRegex(self.command("status", run), r"records in \S+ are \d+ s old.*its disk is full")
        self.assertIn("its disk is full", json.loads(self.command("status", run, "--json"))["notice"])
        self.failed("console", run, "-c", "why", code=64)  # there was no incident
        self.assertIn("its disk is full", self.stderr)
        self.assertRegex(self.command("console", run, "-c", "status"), "the supervisor cannot write .*: No space left on device")
        self.assertRegex(self.failed("console", run, "-c", "save", code=74), "No space left on device")
        request = urllib.request.Request(page["url"].split("?")[0] + "status", headers={"Authorization": f"Bearer {page['token']}"})
        with urllib.request.urlopen(request) as answer:
            self.assertIn("its disk is full", json.loads(answer.headers["X-Notice"]))

        (self.disk / "filler").unlink()
        for line in process.stdout:
            if "the run's records are written again" in line:
                break
        at = last_step(run)
        self.wait_for(lambda: last_step(run) > at, "records of steps")
        self.assertNotIn("disk is full", self.command("status", run))
        self.assertIn("saved a checkpoint", self.command("console", run, "-c", "save"))
        self.end(run, process)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_full_disk_of_the_checkpoints_is_told_until_one_is_saved(self):
        run, process = self.begin(*self.layout(2, 1), f"--checkpoint.folder={self.disk}/checkpoints")
        self.fill()
        said = self.failed("console", run, "-c", "save", code=74)
        self.assertRegex(said, r"saving step \d+ failed: .*No space left on device")
        self.wait_for(lambda: status(run)["checkpoint_failed"], "the failed save in the status")
        self.assertRegex(self.command("status", run), r"step \d+ could not be saved: .*No space left on device")
        self.failed("console", run, "-c", "why", code=64)
        self.assertIn("could not be saved", self.stderr)
        for line in process.stdout:
            if "was not saved" in line:
                break
        self.assertIn("No space left on device", line)
        (self.disk / "filler").unlink()
        self.command("console", run, "-c", "save")
        self.wait_for(lambda: not status(run)["checkpoint_failed"], "the end of the notice")
        self.assertNotIn("could not be saved", self.command("status", run))
        self.end(run, process)


class Killed(Told):
    def kill_all(self, run, process):
        kill_all(run)
        process.wait(10)

    def test_runs_and_plot_say_that_records_are_old(self):
        run, process = self.begin(*self.layout(1, 1))
        supervisor = status(run)["supervisor"]["pid"]
        os.kill(supervisor, signal.SIGSTOP)
        self.wait_for(lambda: "State:\tT" in pathlib.Path(f"/proc/{supervisor}/status").read_text(), "the stop")
        os.utime(run / "control/status.json", (1e9, 1e9))
        for command in (["runs", self.folder], ["plot", run, "-o", self.folder / "p.svg"]):
            self.command(*command)
            self.assertRegex(self.stderr, r"warning: the records in \S*run are \d+ s old")
        self.assertIn("cannot write", self.failed("report", run, "-o", self.folder / "missing/r.html", code=74))
        os.kill(supervisor, signal.SIGCONT)
        self.kill_all(run, process)

    def test_the_death_of_all_processes_is_an_incident_of_the_next_start(self):
        keys = [*self.layout(2, 1), "--train.max_steps=600", "--checkpoint.disk_every_steps=0"]
        want = self.undisturbed("--train.global_batch_size=8", *keys)
        run, process = self.begin(*keys)
        saved = int(self.command("console", run, "-c", "save").split("step-")[1])
        self.wait_for(lambda: last_step(run) >= saved + 5, "steps after the checkpoint")
        self.kill_all(run, process)
        last = last_step(run)
        self.wait_for(lambda: "failed" in self.command("status", run), "the end to be told")
        shown = self.command("status", run)
        self.assertIn("all of its processes ended without a word", shown)
        self.assertRegex(shown, rf"to continue from the newest checkpoint: \S*simplescale resume \S*run\n")
        self.failed("console", run, "-c", "why", code=64)
        self.assertIn("ended without a word", self.stderr)

        self.command("resume", run)
        died, = events(run, "run_died")
        self.assertEqual((died["phase"], died["incident"], died["step"]), ("detect", 1, last))
        recovered, = events(run, "recovered")
        self.assertRegex(recovered["sentence"], rf"^All processes of the run ended without a word: .* training went back from step {last} "
                         rf"to checkpoint {saved}: {last - saved} steps were repeated\. Stopped for ")
        self.assertEqual(recovered["incident"], 1)
        self.assertGreaterEqual(recovered["ms"], 1000 * (events(run, "started")[1]["time"] - lines(run / "metrics.jsonl")[last - 1]["time"]) - 1)
        self.assertTrue(self.command("console", run, "-c", "why").startswith(recovered["sentence"]))
        self.command("report", run, "-o", self.folder / "report.html")
        self.assertIn("ended without a word", (self.folder / "report.html").read_text())
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.command("resume", run, "--train.max_steps=605")  # it had ended
        self.assertEqual(len(events(run, "run_died")), 1)

    def test_a_run_whose_end_did_not_reach_its_events_did_not_die(self):
        run = self.train("run", *self.layout(1, 1), "--train.max_steps=5")
        path = run / "events.jsonl"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if json.loads(line)["kind"] != "finished"))
        self.command("resume", run, "--train.max_steps=10")
        self.assertEqual(events(run, "run_died"), [])
        self.assertEqual(last_step(run), 10)

    def test_a_run_that_was_killed_before_its_first_checkpoint_repeats_all_steps(self):
        run, process = self.begin(*self.layout(1, 1), "--train.max_steps=1000")
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        step = last_step(run)
        self.kill_all(run, process)
        self.command("resume", run)
        sentence = events(run, "recovered")[0]["sentence"]
        self.assertIn(f"{step} steps were repeated", sentence)  # there was no checkpoint
        self.assertIn("the beginning", sentence)

    def test_status_says_why_a_run_failed_and_what_to_type(self):
        run, process = self.begin(*self.layout(2, 1))
        self.data.write_bytes(b"\xff\xff" * (len(self.data.read_bytes()) // 2))
        self.assertEqual(process.wait(120), 65, process.stdout.read())
        shown = self.command("status", run)
        self.assertIn("token id 65535 is beyond the vocabulary", shown)
        self.assertRegex(shown, r"mend what the reason names, then: \S*simplescale resume ")
        self.assertIn("resume", json.loads(self.command("status", run, "--json"))["next"])


class Drills(Told):
    def test_a_fault_on_a_node_that_is_not_there_is_refused_and_a_planned_one_is_recorded(self):
        planned = '--inject.faults=[{ step = 3, kind = "disk_full", target = "n2" }]'  # another host's, that never comes
        run = self.folder / "run"
        command = [PROGRAM, "train", self.config, f"--run={run}", *self.KEYS, *self.layout(2, 1), "--cluster.spares=1", planned, "--nnodes=3",
                   "--cluster.join_timeout_ms=10000"]
        hosts = [subprocess.Popen([*map(str, command), f"--node-rank={rank}"], cwd=self.folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for rank in (0, 1)]
        for host in hosts:
            self.addCleanup(lambda host=host: host.poll() is None and host.kill())
        self.wait_for(lambda: last_step(run) >= 5, "steps")
        missed = self.wait_for(lambda: events(run, "not_injected"), "the planned fault")[0]
        self.assertEqual((missed["subject"], missed["step"]), ("n2", 2))
        self.assertIn("n2 is absent: its agent has not reported yet", missed["reason"])
        for target in ("disk_full n2", "kill_trainer n2.0"):
            said = self.failed("console", run, "-c", f"inject {target}", code=64)
            self.assertIn("n2 is absent: its agent has not reported yet", said)
        self.command("console", run, "-c", "plan kill_agent n2")  # a question
        self.command("console", run, "-c", "stop")
        for host in hosts:
            host.wait(120)

    def test_kill_agent_takes_the_supervisor_or_standby_of_its_node_with_it(self):
        run, process = self.begin(*self.layout(2, 1))
        for role in ("supervisor", "standby"):  # after a standby's end the next one is appointed some seconds later
            there = self.wait_for(lambda: status(run)["standby"] and status(run), "a standby")[role]
            self.command("console", run, "-c", f"inject kill_agent {there['node']}")
            self.wait_for(lambda: not os.path.exists(f"/proc/{there['pid']}"), f"the end of the {role}")
            step = last_step(run)
            self.wait_for(lambda: last_step(run) > step + 5 and all(n["state"] == "up" for n in status(run)["nodes"]), "both nodes to train")
        self.assertFalse(events(run, "drained"))
        self.end(run, process)
        self.assertIn("each sample exactly once", self.verify(run))

    def test_an_agent_that_is_stopped_and_continued_again_and_again_is_one_cause_each_time(self):
        run, process = self.begin(*self.layout(2, 2), "--supervision.silence_ms=1000", "--supervision.max_restarts=3")
        for times in range(1, 3):
            self.command("console", run, "-c", "inject stop_agent n1 --ms 4000")
            self.wait_for(lambda: len([e for e in events(run, "check_passed", "drained", "check_failed") if e["subject"] == "n1"]) >= times,
                          "n1 to come back")
            self.wait_for(lambda: all(n["state"] != "suspect" for n in status(run)["nodes"]), "the end of the diagnosis")
        self.assertFalse(events(run, "drained"), events(run, "node_lost", "trainer_down", "trainer_ended", "node_up"))
        self.end(run, process)


class Chains(Told):
    def test_a_command_waits_for_the_generation_that_the_one_before_it_begins(self):
        run, process = self.begin(*self.layout(2, 1))
        for rate in ("0.001", "0.002", "0.003", "0.002", "0.001"):
            self.assertIn("saved a checkpoint", self.command("console", run, "-c", f"set train.learning_rate {rate}", "-c", "save"))
        self.assertIn("saved a checkpoint", self.command("console", run, "-c", "inject kill_trainer n1.0", "-c", "save", "-c", "restart g1", "-c", "save"))
        self.assertIn("saved a checkpoint", self.command("console", run, "-c", "pause", "-c", "resume", "-c", "save"))
        self.end(run, process)

    def test_after_a_refusal_the_rest_is_named_and_no_run_is_left_paused(self):
        run, process = self.begin(*self.layout(2, 1))
        said = self.failed("console", run, "-c", "pause", "-c", "set nonsense 1", "-c", "nodes", "-c", "resume", "-c", "events", code=64)
        self.assertIn("cannot be changed", said)
        self.assertIn("not run: `nodes`, `events`", said)
        self.assertIn("`resume` was run", said)
        step = last_step(run)
        self.wait_for(lambda: last_step(run) > step, "training")
        self.assertIn("not run: `stop`", self.failed("console", run, "-c", "drain n9", "-c", "stop", code=64))
        self.assertIn("the run is paused: `resume` continues it", self.failed("console", run, "-c", "pause", "-c", "drain n9", code=64))
        self.assertIn("paused; `resume`", self.failed("console", run, "-c", "save", code=64))  # at once
        self.command("console", run, "-c", "resume")
        self.end(run, process)


class Verify(Told):
    def test_what_a_run_removes_itself_is_not_invalid(self):
        run, process = self.begin(*self.layout(2, 1), "--checkpoint.disk_every_steps=2", "--checkpoint.keep=2", slow=False)
        self.wait_for(lambda: events(run, "checkpoint_saved"), "a checkpoint")
        for _ in range(30):
            self.assertIn(": valid", self.verify(run))
        self.command("console", run, "-c", "inject kill_trainer n1.0")
        for _ in range(10):
            self.assertIn(": valid", self.verify(run))
        self.end(run, process)
        broken = max(run.glob("checkpoints/step-*"))
        (broken / "manifest.json").unlink()
        self.command("verify", run, code=65)
