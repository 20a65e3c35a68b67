"""`train --nnodes=N --node-rank=R` on several hosts without Slurm: a command for each host, and a shared run folder. The hosts
are network namespaces (root), or commands that share this host."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import unittest

from common import PROGRAM, Case, events, kill, kill_all, last_step, leftovers, status
from namespaces import WHY_NOT, Network

# With network namespaces only these run on one host, too: it would take as long again.
ON_ONE_HOST = ("test_any_order_and_a_spare", "test_one_host_leaves_and_returns", "test_variables_of_a_pytorch_job")

ENDLESS = 10 ** 6  # steps: more than a test waits for


class Hosts(Case):
    """Commands that share this host. LOCK-2: a command joins the start that lives, or begins one; no rank twice."""
    nnodes = 3
    spaces = None  # the network namespaces of the hosts

    def setUp(self):
        if type(self) is Hosts and not WHY_NOT and self._testMethodName not in ON_ONE_HOST:
            self.skipTest("it runs between network namespaces")
        super().setUp()
        self.run_folder = self.folder / "run"
        self.keys = ["--train.global_batch_size=12", *self.layout(3, 1), "--parallel.collective_timeout_ms=10000",
                     "--supervision.max_restarts=100", "--train.schedule=constant", "--train.warmup_steps=0"]
        self.steps = ENDLESS
        self.commands = {}
        self.addCleanup(self.end_all)

    def host(self, rank, *more, nnodes=None, env=None, log=None):
        """Calls the command of a rank. The file log-RANK has its stderr."""
        space = ["ip", "netns", "exec", self.spaces[rank]] if self.spaces else []
        with open(self.folder / (log or f"log-{rank}"), "a") as errors:
            process = subprocess.Popen(
                [*space, PROGRAM, "train", str(self.config), f"--run={self.run_folder}", f"--nnodes={nnodes or self.nnodes}",
                 f"--node-rank={rank}", *self.keys, f"--train.max_steps={self.steps}", *more],
                cwd=self.folder, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def begin(self, *ranks):
        for rank in ranks or range(self.nnodes):
            self.commands[rank] = self.host(rank)
        self.wait_for(lambda: last_step(self.run_folder) >= 5, "step 5")
        if self.steps == ENDLESS:
            self.slow(0)

    def slow(self, rank):
        self.slow_down(self.run_folder, f"n{rank}", ["ip", "netns", "exec", self.spaces[rank]] if self.spaces else (), ms=10)

    def end_all(self):
        kill_all(self.run_folder)

    def log(self, rank):
        return (self.folder / f"log-{rank}").read_text()

    def lose(self, rank):
        """Kills all processes of a host."""
        name = f"n{rank}"
        agents = [e["pid"] for e in self.node_processes(rank)]
        self.commands[rank].kill()
        kill(*agents)
        self.commands[rank].wait()
        self.wait_for(lambda: any(e["subject"] == name for e in self.events("node_lost")), f"the loss of {name}")

    def node_processes(self, rank):
        """Agent, supervisor and trainers of a node."""
        found = []
        for pid in leftovers(self.run_folder):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            for option in ("--node", "--process"):
                if option in words and words[words.index(option) + 1].split(".")[0].split("/")[0] in (str(rank), f"n{rank}"):
                    found.append({"pid": int(pid), "words": words})
        return found

    def hold(self, name, kind=fcntl.LOCK_EX):
        """Locks a file in control/, as a file server does for a host that is lost. Returns what ends that."""
        file = open(self.run_folder / "control" / name)
        self.addCleanup(file.close)
        self.wait_for(lambda: self.locks(file, kind), f"the lock of {name}")
        return file.close

    @staticmethod
    def locks(file, kind):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    @staticmethod
    def status_of(task):
        with open(f"{task}/status") as file:
            return {name: value.strip() for name, value in (line.split(":", 1) for line in file)}

    def events(self, *kinds):
        return events(self.run_folder, *kinds)

    def more_steps(self, count):
        at = last_step(self.run_folder)
        self.wait_for(lambda: last_step(self.run_folder) >= at + count, "further steps")

    def add(self, rank):
        """Calls the command of a rank while the others train, and waits until its node trains, too."""
        def ups():
            return sum(e["subject"] == f"n{rank}" for e in self.events("node_up"))
        before = ups()
        self.commands[rank] = self.host(rank)

        def trains():
            document = status(self.run_folder) if ups() > before else None
            return document and document["state"] == "training" and all(n["state"] == "up" and n["group"] is not None for n in document["nodes"])
        self.wait_for(trains, "all nodes to train")

    def end(self, *commands, code=0):
        for command in commands or self.commands.values():
            self.assertEqual(command.wait(120), code, [self.log(rank) for rank in self.commands])

    def stop_all(self):
        """All hosts are asked to end: the run saves, and each command ends with 75."""
        for command in self.commands.values():
            command.terminate()
        self.end(code=75)
        self.wait_for(lambda: not leftovers(self.run_folder), "all processes of the run to end")
        saved = os.readlink(self.run_folder / "checkpoints/latest")
        self.assertEqual(int(saved.partition("-")[2]), last_step(self.run_folder))

    def check(self):
        """The bits are those of as many steps on one host."""
        self.assertIn("each sample exactly once", self.verify(self.run_folder))
        same = self.train("reference", *self.keys, *self.layout(1, 1), f"--train.max_steps={last_step(self.run_folder)}")
        self.assertEqual(self.digest(self.run_folder), self.digest(same))

    def instance(self):
        return (self.run_folder / "control/instance").read_text().strip()

    def test_any_order_and_a_spare(self):
        self.nnodes, self.steps = 4, 60
        self.begin(3, 1, 0, 2)
        self.end()
        self.check()

    def test_a_host_that_is_lost_returns(self):
        self.begin()
        instance = self.instance()
        self.lose(1)
        self.more_steps(5)
        self.add(1)
        self.assertEqual(self.instance(), instance)
        self.stop_all()
        self.check()

    def test_a_killed_command_takes_its_node_with_it_and_returns(self):
        self.begin()
        self.commands[2].kill()
        self.commands[2].wait()
        self.wait_for(lambda: any(e["subject"] == "n2" for e in self.events("node_lost")), "the loss of n2")
        self.add(2)
        self.stop_all()
        self.check()

    def test_a_rank_or_number_that_does_not_fit_is_refused(self):
        self.begin()
        twice = self.host(1, log="twice")
        self.assertEqual(twice.wait(60), 78)
        self.assertIn("another command has --node-rank=1: process "
                      f"{self.commands[1].pid} on {os.uname().nodename}: give each host a rank of its own",
                      (self.folder / "twice").read_text())
        self.commands[2].kill()
        self.commands[2].wait()
        wrong = self.host(2, nnodes=5, log="wrong")
        self.assertEqual(wrong.wait(60), 78)
        self.assertRegex((self.folder / "wrong").read_text(), r"--nnodes is 5 here, but 3 at n\d on .*, which began this start")
        further = self.host(3, nnodes=4, log="further")
        self.assertEqual(further.wait(60), 78)
        self.assertIn(f"a further host joins the run while it trains by: simplescale train --join {self.run_folder}", (self.folder / "further").read_text())
        other = self.host(2, "--train.learning_rate=0.1", log="other")
        self.assertEqual(other.wait(60), 78)
        self.assertIn("train.learning_rate is 0.003 there, not 0.1", (self.folder / "other").read_text())
        self.add(2)
        self.stop_all()
        self.check()

    def test_a_signal_before_the_run_begins_ends_the_command_at_once(self):
        """What it leaves is not in the way of the next start. The end of a terminal (SIGHUP) ends nothing."""
        for count, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), 1):
            waiting = self.host(1, log=f"waiting-{number}")
            self.wait_for(lambda: len(list(self.run_folder.glob("control/hosts-*/here/1"))) == count, "n1 to wait for the others")
            waiting.send_signal(signal.SIGHUP)
            waiting.send_signal(number)
            self.assertEqual(waiting.wait(60), 75)
            self.assertIn("stopped by a signal before the run began", (self.folder / f"waiting-{number}").read_text())
        self.begin()
        self.stop_all()
        self.check()

    def test_what_an_earlier_start_wrote_of_its_nodes_does_not_count(self):
        """Until the supervisor writes status.json, it is of the start before, which may have lost nodes."""
        self.begin()
        self.slow(1)  # n0 leaves
        page = self.run_folder / "control/status.json"
        supervisor = status(self.run_folder)["supervisor"]["pid"]
        os.kill(supervisor, signal.SIGSTOP)
        document = status(self.run_folder) | {"instance": "0" * 16}
        for node in document["nodes"][1:]:
            node["state"] = "lost"
        page.write_text(json.dumps(document))
        self.commands[0].terminate()
        self.wait_for(lambda: "n0 leaves the run in 5 s; if the commands of n1 n2 are stopped" in self.log(0), "n0 to wait for the others")
        os.kill(supervisor, signal.SIGCONT)
        self.end(self.commands[0], code=75)
        self.more_steps(5)
        self.add(0)
        self.stop_all()
        self.check()

    def test_one_host_leaves_and_returns(self):
        self.begin()
        self.commands[1].send_signal(signal.SIGTERM)
        self.end(self.commands[1], code=75)
        self.assertIn("n1 has left the run, which goes on without it", self.log(1))
        self.more_steps(5)
        self.add(1)
        self.stop_all()
        self.check()

    def test_a_signal_to_all_processes_of_a_host_ends_only_its_node(self):
        """As systemd sends it. The end of a terminal (SIGHUP) ends nothing."""
        self.begin()
        self.commands[1].send_signal(signal.SIGHUP)
        self.more_steps(5)
        for pid in [self.commands[1].pid, *(e["pid"] for e in self.node_processes(1))]:
            os.kill(pid, signal.SIGTERM)
        self.end(self.commands[1], code=75)
        self.assertIn("n1 has left the run, which goes on without it", self.log(1))
        self.more_steps(5)
        self.assertFalse(self.events("stop_requested"))
        self.add(1)
        self.stop_all()
        self.check()

    def test_the_signal_of_a_command_arrives_beside_that_of_systemd(self):
        """The agent of n1 handles neither until both have arrived."""
        self.begin()
        agent = next(e["pid"] for e in self.node_processes(1) if "agent" in e["words"])
        def pending():
            return bin(int(self.status_of(f"/proc/{agent}")["ShdPnd"], 16)).count("1") == 2
        os.kill(agent, signal.SIGSTOP)
        # A thread that has not stopped yet would take the signal.
        self.wait_for(lambda: all(self.status_of(thread)["State"].startswith("T")
                                  for thread in pathlib.Path(f"/proc/{agent}/task").iterdir()), "all threads to stop")
        os.kill(agent, signal.SIGTERM)
        for command in self.commands.values():
            command.terminate()
        self.wait_for(pending, "the command's signal")
        os.kill(agent, signal.SIGCONT)
        self.stop_all()
        self.check()

    def test_a_lost_host_whose_lock_is_kept_keeps_no_run_from_saving(self):
        self.begin()
        self.lose(2)
        self.hold(f"hosts-{self.instance()}/rank-2")
        del self.commands[2]
        self.stop_all()
        self.check()

    def test_a_host_that_joins_as_the_run_ends_ends_with_it(self):
        self.begin()
        self.lose(2)
        release = self.hold(f"hosts-{self.instance()}/rank-2")
        (self.run_folder / f"control/hosts-{self.instance()}/here/2").unlink()  # n2 may have been on another host
        late = self.host(2, log="late")
        self.wait_for(lambda: "in case it is lost" in (self.folder / "late").read_text(), "n2 to have joined")
        del self.commands[2]
        for command in self.commands.values():
            command.terminate()
        self.end(code=75)
        stopped_at = last_step(self.run_folder)
        release()
        self.assertEqual(late.wait(60), 75, (self.folder / "late").read_text())
        self.assertEqual(last_step(self.run_folder), stopped_at)
        self.assertIn("n2: the run has ended: ", (self.folder / "late").read_text())

    def test_a_host_that_returns_as_the_run_ends_begins_it_not_again(self):
        self.steps = 30
        self.begin()
        self.end()
        instance = self.instance()
        ends = [self.hold("hosts", fcntl.LOCK_SH), self.hold("lock")]  # as a command that still prints the summary
        late = self.host(1, log="late")
        self.wait_for(lambda: "waits for the commands of an earlier start" in (self.folder / "late").read_text(), "n1 to wait")
        for end in reversed(ends):
            end()
        self.assertEqual(late.wait(60), 0)
        self.assertIn("is already finished at 30/30", (self.folder / "late").read_text())
        self.assertEqual(self.instance(), instance)

    def test_all_hosts_stop_and_resume(self):
        self.begin()
        instance = self.instance()
        self.stop_all()
        stopped_at = last_step(self.run_folder)
        self.begin(2, 1, 0)
        self.wait_for(lambda: self.instance() != instance, "a new start")
        self.wait_for(lambda: last_step(self.run_folder) > stopped_at, "a further step")
        self.stop_all()
        self.check()

    def test_all_hosts_are_lost_and_return(self):
        self.keys.append("--checkpoint.disk_every_steps=20")
        self.begin()
        instance = self.instance()
        self.wait_for(lambda: (self.run_folder / "checkpoints/latest").exists(), "a checkpoint")
        self.end_all()
        for command in self.commands.values():
            command.wait()
        lost_at = last_step(self.run_folder)
        self.begin(1, 2, 0)
        self.wait_for(lambda: self.instance() != instance, "a new start")
        self.wait_for(lambda: last_step(self.run_folder) > lost_at, "a step that no earlier start made")
        self.stop_all()
        self.check()

    def test_a_late_host(self):
        self.keys += ["--cluster.join_timeout_ms=5000"]
        self.begin(0, 1)
        self.assertIn("still waiting for 1 of 3 hosts, first for --node-rank=2", self.log(0))
        self.add(2)
        self.stop_all()
        self.check()

    def test_too_few_hosts_are_refused_at_once(self):
        self.command("train", self.config, f"--run={self.run_folder}", *self.keys, "--train.max_steps=9", "--nnodes=2", "--node-rank=0", code=78)
        self.assertIn("the run has 2 tasks, but cluster.nodes = 3: use srun --ntasks=3 --ntasks-per-node=1, or --nnodes=3 without srun, "
                      "or more tasks for spares", self.stderr)
        self.assertFalse(self.run_folder.exists())

    def test_variables_of_a_pytorch_job(self):
        usage = self.command("train", self.config, f"--run={self.run_folder}", code=64, env={"PET_NNODES": "3", "PET_NODE_RANK": "3"})
        self.assertIn("--node-rank=3 is not below --nnodes=3: ranks count from 0; a further host joins the run while it trains by: train --join RUN",
                      usage + self.stderr)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Namespaces(Hosts):
    """Hosts that reach each other only by TCP."""

    def setUp(self):
        super().setUp()
        network = Network(4)
        self.addCleanup(network.close)
        self.spaces = network.spaces
