"""Nodes in separate network namespaces, as on several hosts, for test_network.py and test_strangers.py. The shared run folder
keeps working. Needs root, ip and nft."""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from common import PROGRAM, Case, events, kill, last_step, leftovers, lines, status

NODES = 3
RELAY = pathlib.Path(__file__).with_name("altering_relay.py")
counter = itertools.count()


def sh(*words, check=True):
    return subprocess.run([str(w) for w in words], check=check, capture_output=True, text=True)


class Network:
    """A bridge and one namespace per node. Names have a prefix that is unique to this process."""

    def __init__(self, nodes):
        self.id = f"{os.getpid()}x{next(counter)}"
        self.bridge = f"ssb{self.id}"
        self.spaces = [f"ss{self.id}-n{i}" for i in range(nodes)]
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "link", "set", self.bridge, "up")
        for i, space in enumerate(self.spaces):
            sh("ip", "netns", "add", space)
            sh("ip", "link", "add", f"v{self.id}{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            sh("ip", "link", "set", f"v{self.id}{i}", "master", self.bridge, "up")
            sh("ip", "-n", space, "addr", "add", f"10.214.7.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", space, "link", "set", "eth0", "up")
            sh("ip", "-n", space, "link", "set", "lo", "up")
            self.nft(i, "true")

    def nft(self, node, script):
        return sh("ip", "netns", "exec", self.spaces[node], "sh", "-c", script)

    def drop(self, node, out=None, into=None):
        """Drops outgoing and incoming packets of a node. out, into: an nftables match; "": all packets; None: none."""
        rules = ["nft flush ruleset", "nft add table inet t",
                 "nft 'add chain inet t o { type filter hook output priority 0; }'",
                 "nft 'add chain inet t i { type filter hook input priority 0; }'"]
        if out is not None:
            rules.append(f"nft add rule inet t o oifname eth0 '{out}' drop")
        if into is not None:
            rules.append(f"nft add rule inet t i iifname eth0 '{into}' drop")
        self.nft(node, " && ".join(rules))

    def heal(self, node):
        self.nft(node, "nft flush ruleset")

    def ports(self, nodes):
        """HOST:PORT of each TCP socket that listens in the namespaces of these nodes."""
        found = set()
        for node in nodes:
            for line in self.nft(node, "cat /proc/net/tcp /proc/net/tcp6").stdout.splitlines():
                fields = line.split()
                if fields[3:4] == ["0A"]:
                    found.add(f"10.214.7.{node + 1}:{int(fields[1].rpartition(':')[2], 16)}")
        return sorted(found)

    def processes(self, node):
        """Ids of the processes in a node's namespace; none if close() has removed it."""
        return [int(pid) for pid in sh("ip", "netns", "pids", self.spaces[node], check=False).stdout.split()]

    def alter(self, node, how, first, changes, folder=None):
        """Puts a relay on the path of what a node sends and receives. Returns its process; see altering_relay.py."""
        port = 9999
        words = [str(port), how, str(first), str(changes), *([str(folder)] if folder else [])]
        relay = subprocess.Popen(["ip", "netns", "exec", self.spaces[node], sys.executable, RELAY, *words],
                                 stdout=subprocess.PIPE, text=True)
        relay.stdout.readline()
        self.nft(node, "nft add table ip r && nft 'add chain ip r o { type nat hook output priority -100; }' && "
                       "nft 'add chain ip r i { type nat hook prerouting priority -100; }' && "
                       f"nft add rule ip r o oifname eth0 ip protocol tcp meta mark != 7 redirect to :{port} && "
                       f"nft add rule ip r i iifname eth0 ip protocol tcp redirect to :{port}")
        return relay

    def limit(self, rate):
        """Limits what each node sends, and what it receives, for example to "1gbit" a second."""
        words = "root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms"
        for i, space in enumerate(self.spaces):
            sh("tc", "-n", space, "qdisc", "add", "dev", "eth0", *words)
            sh("tc", "qdisc", "add", "dev", f"v{self.id}{i}", *words)

    def sent(self):
        """Bytes that each node's interface has sent so far."""
        return [int(self.nft(i, "cat /sys/class/net/eth0/statistics/tx_bytes").stdout) for i in range(len(self.spaces))]

    def close(self):
        for space in self.spaces:
            sh("ip", "netns", "del", space, check=False)
        sh("ip", "link", "del", self.bridge, check=False)


def works():
    """Why namespaces do not work here; an empty string if they do."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip") or not shutil.which("nft"):
        return "needs ip (iproute2) and nft (nftables)"
    network = None
    try:
        network = Network(1)
        network.drop(0, out="", into="numgen random mod 100 < 5")
        return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.strip()}"
    finally:
        if network:
            network.close()


WHY_NOT = works()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class NetworkCase(Case):
    def begin(self, steps, nodes=NODES, *more, prepare=None, strangers=0, slow=None):
        """Starts one agent per namespace, as srun would. prepare: called before that.
        strangers: further namespaces, without an agent. slow: a node that slows the run down until go_on()."""
        self.network = Network(nodes + strangers)
        self.addCleanup(self.network.close)
        if prepare:
            prepare()
        # Long enough for TCP to retransmit a lost packet.
        self.keys = ["--train.global_batch_size=12", *self.layout(nodes, 1), "--parallel.collective_timeout_ms=10000",
                     "--supervision.max_restarts=100", *more]
        self.want = self.undisturbed("--train.global_batch_size=12", f"--train.max_steps={steps}")
        self.run_folder = self.folder / "run"
        self.steps = steps
        self.addCleanup(self.end_all)
        self.tasks = [self.task(self.run_folder, i, nodes, i) for i in range(nodes)]
        if slow is not None:
            self.slow_down(self.run_folder, f"n{slow}", ["ip", "netns", "exec", self.network.spaces[slow]], ms=10)
        self.wait_for(lambda: last_step(self.run_folder) >= 5 and self.standby(), "step 5 and a standby")
        self.assertRegex(self.command("status", self.run_folder), r"network: messages over encrypted TCP \(the supervisor: 10\.214\.7\.[^)]*\); "
                         "collectives between hosts over encrypted TCP\n")

    def task(self, run, number, tasks, space):
        """Starts one task of a run in a namespace."""
        environment = {**os.environ, "SLURM_PROCID": str(number), "SLURM_NTASKS": str(tasks), "SLURM_JOB_ID": "7",
                       "SLURM_STEP_ID": "0", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
        with open(self.folder / f"task-{space}.err", "w") as errors:
            task = subprocess.Popen(
                ["ip", "netns", "exec", self.network.spaces[space], PROGRAM, "train", str(self.config), f"--run={run}",
                 *self.keys, f"--train.max_steps={self.steps}"],
                cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        self.addCleanup(task.wait)
        self.addCleanup(task.kill)
        return task

    def end_all(self):
        for space in range(len(self.network.spaces)):
            kill(*self.network.processes(space))

    def standby(self):
        document = status(self.run_folder)
        return document and document["standby"] and document["standby"]["node"]

    def events(self, *kinds):
        return events(self.run_folder, *kinds)

    def more_steps(self, count, what):
        at = last_step(self.run_folder)
        self.wait_for(lambda: last_step(self.run_folder) >= at + count, what)

    def lost(self, node):
        self.wait_for(lambda: any(e["subject"] == node for e in self.events("node_lost")), f"the loss of {node}", 30)

    def wait_until_all_nodes_train(self):
        """Waits until all nodes train again."""
        def groups():
            document = status(self.run_folder)
            return document and document["state"] == "training" and all(n["state"] == "up" and n["group"] is not None for n in document["nodes"])
        self.wait_for(groups, "all nodes to train again", 60)
        self.more_steps(5, "steps of all nodes")
        self.go_on()

    def check(self):
        """Checks the run's end: same bits, each sample once, no step twice, exit code 0 of every task."""
        for i, task in enumerate(self.tasks):
            self.assertEqual(task.wait(90), 0, f"n{i}: {(self.folder / f'task-{i}.err').read_text()}")
        self.assertEqual(self.digest(self.run_folder), self.want)
        self.assertIn("each sample exactly once", self.verify(self.run_folder))
        metrics = lines(self.run_folder / "metrics.jsonl")
        self.assertEqual([m["step"] for m in metrics], list(range(1, self.steps + 1)))
        self.wait_for(lambda: not leftovers(self.run_folder), "all processes of the run to end")
