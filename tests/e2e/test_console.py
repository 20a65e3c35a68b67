"""`console` and `logs` as a user at a terminal uses them."""

import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
import unittest

from common import PROGRAM, Case, events, kill, last_step, leftovers, status, trainer_pids


class Terminal:
    """Runs the program on a pseudo-terminal: types keys and reads the output."""

    def __init__(self, case, *arguments, env=None):
        self.case = case
        self.shown = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "HOME": str(case.folder), "COLUMNS": "100", **(env or {})})
            os.execv(PROGRAM, [str(PROGRAM), *map(str, arguments)])
        self.code = None
        case.addCleanup(self.kill)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def read(self, timeout):
        if select.select([self.fd], [], [], timeout)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the program has ended
                return False
            # Removes the column moves with which libedit repositions the cursor.
            self.shown = re.sub("\r?\x1b\\[[0-9]*G", "", self.shown + data.decode(errors="replace"))
            return bool(data)
        return None

    def expect(self, text, timeout=30):
        """Reads until the text appears. Discards the output up to its end and returns the part before it."""
        end = time.monotonic() + timeout
        while text not in self.shown:
            left = end - time.monotonic()
            if left <= 0 or self.read(min(left, 1)) is False:
                self.case.fail(f"no {text!r} on the terminal, but {self.shown!r}")
        before, self.shown = self.shown.split(text, 1)
        return before

    def command(self, text):
        """Types a line. Returns the output up to the next prompt."""
        self.type(text + "\r")
        self.expect("\n")
        return self.expect(")> ")

    def wait(self, keys="", timeout=60):
        """Waits for the exit code. keys: typed every second, since a key can get lost before a prompt appears."""
        end = time.monotonic() + timeout
        while self.code is None:
            if time.monotonic() > end:
                self.case.fail(f"the program does not end: {self.shown!r}")
            if keys:
                try:
                    self.type(keys)
                except OSError:
                    pass  # the program has ended
            if self.read(1) is False:
                _, state = os.waitpid(self.pid, 0)
                self.code = os.waitstatus_to_exitcode(state)
        return self.code

    def kill(self):
        if self.code is None:
            kill(self.pid)
            os.waitpid(self.pid, 0)
            self.code = -9
        os.close(self.fd)


class Tmux:
    """Runs a program in a tmux window. Reads the contents of the screen instead of the output stream."""

    def __init__(self, case, *command):
        self.case, self.socket = case, case.folder / "tmux"
        case.addCleanup(lambda: self("kill-server", check=False))
        self("new-session", "-d", "-x", "100", "-y", "30", shlex.join(["env", f"HOME={case.folder}", *map(str, command)]))

    def __call__(self, *command, check=True):
        done = subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *command], capture_output=True, text=True, timeout=20)
        if check:
            self.case.assertEqual(done.returncode, 0, done)
        return done.stdout

    def keys(self, *keys):
        self("send-keys", *keys)

    def screen(self):
        return self("capture-pane", "-p")

    def wait(self, condition, what):
        try:
            return self.case.wait_for(lambda: condition(self.screen()), what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows\n{self.screen()}") from None


class Console(Case):
    def begin(self, *flags, steps=100000, groups=2):
        run, process = self.start("run", *self.layout(groups, 1), f"--train.max_steps={steps}", "--train.global_batch_size=8", *flags)
        self.wait_for(lambda: last_step(run) >= 3 and status(run)["standby"] and status(run)["state"] == "training", "training and a standby")
        return run, process

    def open(self, run, **env):
        terminal = Terminal(self, "console", run, env=env)
        terminal.expect(")> ")
        return terminal

    def end(self, run, process, *consoles):
        for console in consoles:
            self.assertEqual(console.wait(keys="\x04"), 0)
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
        self.assertIn("each sample exactly once", self.verify(run))

    def ask(self, run, command, **more):
        return json.loads(self.command("console", run, "-c", command, "--json", **more))

    @unittest.skipUnless(shutil.which("tmux"), "SKIPPED: no tmux")
    def test_the_console_in_a_tmux_window(self):
        run, process = self.begin()
        window = Tmux(self, PROGRAM, "console", run)
        prompts = lambda screen: screen.count(")>")
        window.wait(lambda screen: prompts(screen) == 1, "a prompt")
        window.keys("tre", "Tab", "Enter")
        window.wait(lambda screen: "n1.0 training shard 0" in screen and prompts(screen) == 2, "the tree, and another prompt")
        window.keys("watch", "Enter")
        step = lambda screen: int((re.search(r"training, step (\d+)", screen) or [0, 0])[1])
        first = window.wait(step, "the watched tree")
        for size in (("100", "30"), ("72", "16")):  # the second size is smaller
            window("resize-window", "-x", size[0], "-y", size[1])
            now = window.wait(lambda screen: step(screen) > first and step(screen), "a later step")
            self.assertGreater(window.wait(lambda screen: step(screen) > now and step(screen), "and one after it"), now)
            window.wait(lambda screen: screen.count("press any key to leave") == 1 and screen.count("training, step") == 1, "one tree, drawn in place")
        window.keys("q")
        window.wait(lambda screen: screen.rstrip().endswith(")>"), "the prompt")
        window.keys("Up", "Up", "Enter")
        window.wait(lambda screen: screen.rstrip().endswith(")>") and "tree" in screen and "n1.0 training" in screen, "the tree again")
        window.keys("quit", "Enter")
        self.wait_for(lambda: not window("list-sessions", check=False), "the console to end")
        self.end(run, process)

    def test_completion_history_and_every_kind_of_command(self):
        run, process = self.begin()
        shell = self.open(run, NO_COLOR="1")
        self.assertNotIn("\x1b[1m", shell.shown)
        self.assertIn("pause", shell.command("help"))
        # Tab inserts a single candidate and lists several.
        shell.type("dra\t")
        shell.expect("drain ")
        shell.type("\t")
        shell.expect("n")  # the common prefix of n0 and n1
        shell.type("\t")
        shell.expect("n0")
        shell.expect("n1")
        shell.type("\x03")  # Ctrl-C discards the line
        shell.expect("^C")
        shell.expect(")> ")
        shell.type("inject kill_tr\t")
        shell.expect("kill_trainer ")
        shell.type("n1.\t")
        shell.expect("n1.0 ")
        shell.type("\x15")  # Ctrl-U clears the line
        tree = shell.command("tree")
        for part in ("├─ g0", "└─ g1", "n0.0 training shard 0", "supervisor on n0"):
            self.assertIn(part, tree)
        self.assertIn("n1", shell.command("nodes"))
        self.assertIn("training, step", shell.command("status"))
        self.assertIn("started", shell.command("events 100"))
        self.assertIn("there was no incident", shell.command("why"))
        self.assertIn("If node n1 dies, ", shell.command("plan kill_agent n1"))
        self.assertIn("unknown command 'nonsense'", shell.command("nonsense"))
        # Up recalls earlier lines.
        self.assertIn("If node n1 dies, ", shell.command("\x1b[A\x1b[A"))
        # watch redraws until a key is pressed.
        shell.type("watch\r")
        for _ in range(3):
            shell.expect("\x1b[H")
            shell.expect("press any key to leave")
        shell.type("q")
        shell.expect(")> ")
        self.assertIn("n0", shell.command("nodes"))
        shell.type("\0")  # the terminal makes this of a Ctrl-D that is typed while a command runs
        self.assertEqual(shell.wait(keys="\x04"), 0)  # Ctrl-D
        # A second console shares the history. Without NO_COLOR the output is coloured.
        shell = self.open(run, TERM="xterm")
        self.assertIn("n1", shell.command("\x1b[A"))
        self.assertEqual((self.folder / ".simplescale_history").read_text().splitlines()[-5:],
                         ["nonsense", "plan kill_agent n1", "watch", "nodes", "nodes"])
        self.assertIn("\x1b[32mtraining", shell.command("status"))
        shell.type("quit\r")
        self.assertEqual(shell.wait(), 0)
        self.end(run, process)

    def test_actions_take_effect_and_are_logged_with_the_user(self):
        run, process = self.begin("--cluster.spares=1", "--supervision.max_restarts=20")
        shell = self.open(run)
        shell.command("pause")
        self.wait_for(lambda: status(run)["paused"] and all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        self.assertIn("the run is paused; `resume` continues it", shell.command("save"))
        step = last_step(run)
        shell.command("resume")
        self.wait_for(lambda: last_step(run) > step and status(run)["state"] == "training" and not status(run)["paused"], "training again")
        step = last_step(run)
        self.assertIn("saved a checkpoint of step", shell.command("save"))
        saved = self.wait_for(lambda: events(run, "checkpoint_saved"), "a checkpoint")
        self.assertGreater(int(saved[0]["subject"].split("-")[1]), step)
        self.assertIn("supervision.max_restarts = 30", shell.command("set supervision.max_restarts 30"))
        self.assertIn("supervision.max_restarts = 30", shell.command("set"))
        before = trainer_pids(run)
        one, other = (next(n["name"] for n in status(run)["nodes"] if n["group"] == group) for group in ("g1", "g0"))
        shell.command("restart g1")
        self.wait_for(lambda: status(run)["state"] == "training" and trainer_pids(run)[f"{one}.0"] not in (0, before[f"{one}.0"]), "another process")
        self.assertEqual(trainer_pids(run)[f"{other}.0"], before[f"{other}.0"])
        shell.command(f"drain {one}")
        self.wait_for(lambda: any(f"takes the place of {one}" in e["reason"] for e in events(run, "layout_changed")), "the spare in its place")
        shell.command(f"add {one}")
        self.wait_for(lambda: events(run, "undrained"), f"{one} back")
        shell.command(f"diagnose {other}")
        self.wait_for(lambda: events(run, "check_passed"), "a diagnosis", timeout=120)
        self.wait_for(lambda: status(run)["state"] == "training" and not status(run)["diagnosing"], "training")
        shell.command("inject kill_trainer " + next(t["name"] for n in status(run)["nodes"] for t in n["trainers"] if t["state"] == "training"))
        self.wait_for(lambda: len(events(run, "recovered")) >= 2, "a recovery")
        self.assertIn("killed (signal 9)", shell.command("why"))
        self.assertEqual(shell.wait(keys="\x04"), 0)
        asked = events(run, "command")
        self.assertEqual([e["subject"].split()[0] for e in asked],
                         ["pause", "resume", "save", "set", "restart", "drain", "add", "diagnose", "inject"])
        for event in asked:
            self.assertRegex(event["reason"], rf"@.+, process {shell.pid}$")
        self.end(run, process)

    def test_a_planned_fault_is_injected_at_its_step(self):
        run, process = self.begin()
        self.wait_for(lambda: status(run)["standby"], "a standby")
        step = last_step(run) + 300
        self.assertIn(f"planned for step {step}", self.command("console", run, "-c", f"inject nan_loss n1.0 --at {step}"))
        for wrong in ("--at abc", "--at", "--at 1", "--at 99999999", "--ms -3", "--value x", "--nonsense 3"):
            self.command("console", run, "-c", f"inject nan_loss n1.0 {wrong}", code=64)
        kill(status(run)["supervisor"]["pid"])  # the fault survives in the replicated state
        injected = self.wait_for(lambda: events(run, "injected"), "the fault")
        self.assertEqual([e["step"] for e in injected], [step - 1])
        self.wait_for(lambda: events(run, "recovered"), "a recovery")
        self.end(run, process)

    def test_an_open_console_finds_the_next_supervisor(self):
        run, process = self.begin()
        one, two = self.open(run), self.open(run)
        one.command("status")
        two.command("status")
        supervisor = status(run)["supervisor"]
        kill(supervisor["pid"])
        # Both consoles find the next supervisor.
        self.assertIn("supervisor on", one.command("tree"))
        self.assertIn("n1", two.command("nodes"))
        self.wait_for(lambda: status(run)["supervisor"]["pid"] != supervisor["pid"] and status(run)["standby"], "the next supervisor and its standby")
        # A supervisor is stopped before it answers: a question is sent again, an action is not.
        supervisor = status(run)["supervisor"]
        os.kill(supervisor["pid"], signal.SIGSTOP)
        self.wait_for(lambda: all(t.read_text().rpartition(")")[2].split()[0] == "T" for t in pathlib.Path(f"/proc/{supervisor['pid']}/task").glob("*/stat")),
                      "all its threads to stop")
        one.type("tree\r")
        two.type("pause\r")
        one.expect("\n")
        self.assertIn(f"supervisor on {'n0' if supervisor['node'] == 'n1' else 'n1'}", one.expect(")> "))
        two.expect("\n")
        self.assertIn("is not known", two.expect(")> "))
        os.kill(supervisor["pid"], signal.SIGCONT)
        self.assertIn("training", one.command("status"))
        self.wait_for(lambda: status(run)["supervisor"]["pid"] != supervisor["pid"] and status(run)["standby"], "a standby of the next")
        self.assertIn("injected", self.command("console", run, "-c", "inject kill_supervisor"))
        self.wait_for(lambda: len(events(run, "took_over")) >= 3, "the third takeover")
        if status(run)["paused"]:
            self.command("console", run, "-c", "resume")
        self.end(run, process, one, two)

    def test_consoles_that_hang_die_or_flood_do_not_affect_the_run(self):
        run, process = self.begin()
        hung, dead = self.open(run), self.open(run)
        hung.command("tree")
        dead.command("tree")
        os.kill(hung.pid, signal.SIGSTOP)
        kill(dead.pid)
        flood = subprocess.run([PROGRAM, "console", str(run), "--json"], input="status\n" * 3000, capture_output=True, text=True, timeout=120)
        self.assertEqual(flood.returncode, 0, flood.stderr)
        self.assertEqual(len(flood.stdout.splitlines()), 3000)
        step = last_step(run)
        self.wait_for(lambda: last_step(run) > step + 5, "further steps")
        self.assertEqual(status(run)["incidents"], 0)
        os.kill(hung.pid, signal.SIGCONT)
        self.assertIn("training", hung.command("status"))
        self.end(run, process, hung)

    def test_commands_from_scripts(self):
        run, process = self.begin()
        self.assertEqual(self.ask(run, "status")["state"], "training")
        self.assertEqual({n["name"] for n in self.ask(run, "nodes")["nodes"]}, {"n0", "n1"})
        self.assertTrue(self.ask(run, "events 3"))
        self.assertIn("no step is lost", self.ask(run, "plan kill_trainer n0.0")["plan"])
        self.assertIn("drain", [v["name"] for v in self.ask(run, "help")])
        self.assertEqual(self.ask(run, "watch")["state"], "training")
        self.assertTrue(self.ask(run, "set")["supervision.within_s"])
        self.command("console", run, "-c", "drain n9", code=64)
        self.assertIn("there is no node 'n9'", self.stderr)
        self.assertIn("kill_agent", self.ask(run, "inject")["kinds"])
        self.assertIn("kill_trainer TRAINER", self.command("console", run, "-c", "plan"))
        self.assertIn("Example:\n  drain n1", self.command("console", run, "-c", "help drain"))
        self.command("console", run, "-c", "help nonsense", code=64)
        saved = self.ask(run, "save")  # it answers once the checkpoint is there
        self.assertTrue((run / f"checkpoints/{saved['checkpoint']}/manifest.json").exists())
        self.assertEqual(int(saved["checkpoint"].removeprefix("step-")), saved["step"])
        self.assertRegex(self.command("console", run, "-c", "save"), r"^saved a checkpoint of step \d+: step-\d{8}\n$")
        self.command("console", run, "-c", "plan kill_agent n9", code=64)
        self.assertIn("there is no node 'n9'", self.stderr)
        self.command("console", run, "-c", "plan kill_agnt n1", code=64)
        self.assertIn("kill_agent", self.stderr)
        self.command("console", run, "-c", "inject kill_agent n1.0", code=64)
        self.assertIn("standby", self.ask(run, "plan kill_supervisor supervisor")["plan"])
        self.assertNotIn("\x1b", self.command("console", run, "-c", "tree"))
        self.end(run, process)
        # After the run has ended the console answers from the run's folder.
        self.assertEqual(self.ask(run, "status")["state"], "stopped")
        self.assertIn("stopped", self.command("console", run, "-c", "tree"))
        self.command("console", run, "-c", "pause", code=64)
        self.assertIn("nothing trains", self.stderr)


class Logs(Case):
    def test_logs_merge_filter_and_follow(self):
        run, process = self.start("run", *self.layout(2, 1), "--train.max_steps=400")
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        follower = subprocess.Popen([PROGRAM, "logs", str(run), "--follow", "--grep", "becomes n1.0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: follower.poll() is None and follower.kill())
        self.command("console", run, "-c", "inject kill_trainer n1.0")
        self.assertIn("becomes n1.0", follower.stdout.readline(), "new lines are printed")
        follower.send_signal(signal.SIGINT)
        self.assertEqual(follower.wait(10), 0)
        follower.stdout.close()
        self.assertEqual(process.wait(120), 0, process.stdout.read())

        everything = self.command("logs", run).splitlines()
        stamps = [line[:23] for line in everything if line[:2] == "20"]
        self.assertEqual(stamps, sorted(stamps))
        for name in (" n0 ", " n1 ", " n1.0 ", " supervisor-n0 "):
            self.assertTrue(any(name in line for line in everything), name)
        one = self.command("logs", run, "n1.0").splitlines()
        self.assertTrue(one and all(" n1.0 " in line for line in one), one)
        self.assertEqual([line for line in everything if "becomes n1.0" in line],
                         self.command("logs", run, "--grep", "becomes n1[.]0").splitlines())
        self.command("logs", run, "n7", code=64)
        self.assertIn("n1.0", self.stderr)
        self.command("logs", run, "--grep", "(", code=64)
        self.command("logs", self.folder / "nothing", code=65)

    def test_an_incident_names_the_first_root_cause_in_the_log_of_the_dead_trainer(self):
        run, process = self.start("run", *self.layout(2, 1), "--train.max_steps=400", "--train.global_batch_size=8")
        self.wait_for(lambda: last_step(run) >= 3 and status(run)["standby"], "step 3")
        with open(run / "logs/n1.0.log", "a") as log:
            log.write("gpu07:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu03\n"
                      "terminate called after throwing an instance of 'c10::Error'\n  what():  No space left on device\n")
        count = len((run / "logs/n1.0.log").read_text().splitlines())
        kill(trainer_pids(run)["n1.0"])
        summary = self.wait_for(lambda: events(run, "recovered"), "the recovery")[0]
        self.assertEqual(summary["cause"], "out_of_disk")
        self.assertIn(f"Cause: out_of_disk (logs/n1.0.log:{count}:   what():  No space left", summary["reason"])
        found = events(run, "log_rule")
        self.assertEqual([(e["rule"], e["cause"], e["subject"], e["file"], e["line"]) for e in found],
                         [("nccl_peer_lost", "consequence", "n1.0", "n1.0.log", count - 2), ("uncaught_exception", "consequence", "n1.0", "n1.0.log", count - 1),
                          ("out_of_disk", "root", "n1.0", "n1.0.log", count)])
        self.assertIn("out_of_disk", self.command("console", run, "-c", "events 100"))
        self.assertTrue(self.command("console", run, "-c", "why").startswith(summary["sentence"]))
        self.assertTrue(summary["reason"].startswith("Trainer n1.0 was killed (signal 9). "), summary)
        self.assertEqual(status(run)["newest_incident"], {"number": 1, "over": True, "sentence": summary["sentence"]})
        self.assertEqual(process.wait(120), 0)
        printed = process.stdout.read()
        self.assertIn("if lost: a trainer costs no step; a node costs no step: the other group trains its samples", printed)
        self.assertEqual([line for line in printed.splitlines() if "incident" in line], ["incident 1: " + summary["sentence"]])

    def test_a_large_log_is_rotated(self):
        run, process = self.start("run", *self.layout(1, 1), "--train.max_steps=100000", "--supervision.log_max_mib=1", "--train.global_batch_size=8")
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        log = run / "logs/n0.0.log"
        text = "".join(f"line {i}\n" for i in range(150000))
        with open(log, "a") as file:
            file.write(text)
        # Rotation removes whole blocks of the file; a partial last block stays.
        self.wait_for(lambda: (run / "logs/n0.0.log.1").exists() and log.stat().st_size < 100_000, "the rotation")
        self.assertIn("line 149999\n", self.command("logs", run, "n0.0"))
        self.command("console", run, "-c", "stop")
        self.assertEqual(process.wait(120), 0, process.stdout.read())
