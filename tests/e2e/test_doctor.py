"""`doctor` on all hosts of an allocation, as srun starts it, and `diagnose` in a run: unfit hosts are named, and no step is
lost."""

import json
import os
import resource
import subprocess

from common import PROGRAM, TINY, Case, last_step, leftovers, lines, status

HOSTS = 3
SMALL_FILES = 7 << 20  # bytes; only the disk check writes larger files


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILES, resource.RLIM_INFINITY))


class Doctor(Case):
    def setUp(self):
        super().setUp()
        self.write_config({**TINY, "train.max_steps": 5})  # `doctor` also checks that the run can begin

    def srun(self, *flags, absent=(), limited=()):
        """Runs one task per host as srun would. Returns (exit code, stdout, stderr) by host."""
        self.run_folder = self.folder / "run"
        tasks = {}
        for i in range(HOSTS):
            host = f"node{i + 1}"
            if host in absent:
                continue
            environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(i), "SLURM_NTASKS": str(HOSTS),
                           "SLURM_STEP_NODELIST": f"node[1-{HOSTS}]", "SLURM_STEP_TASKS_PER_NODE": f"1(x{HOSTS})",
                           "SLURM_NODEID": str(i), "SLURMD_NODENAME": host}
            tasks[host] = subprocess.Popen([PROGRAM, "doctor", str(self.config), f"--run={self.run_folder}", *flags], cwd=self.folder,
                                           env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           preexec_fn=limit_files if host in limited else None)
            self.addCleanup(lambda p=tasks[host]: p.poll() is None and p.kill())
        found = {}
        for host, task in tasks.items():
            out, err = task.communicate(timeout=60)
            found[host] = (task.returncode, out, err)
        return found

    def only(self, found, index):
        """The output of the only task that printed something."""
        said = [task[index] for task in found.values() if task[index]]
        self.assertEqual(len(said), 1, found)
        return said[0]

    def test_all_hosts_and_links_are_checked_and_shown_in_one_table(self):
        found = self.srun()
        self.assertEqual({code for code, _, _ in found.values()}, {0}, found)
        table = self.only(found, 1).splitlines()
        for column in ("arithmetic", "memory", "disk", "clock", "link_rtt", "link", "program"):
            self.assertIn(column, table[0].split())
        for row, host in zip(table[2:], ("node1", "node2", "node3")):
            self.assertRegex(row, rf"^{host}( +[0-9.]+){{6}} +same  pass$")
        self.assertIn("all 3 hosts are fit to train", table[-1])
        self.assertFalse(self.run_folder.exists(), "nothing is left behind")

    def test_what_carries_messages_and_collectives_between_hosts_is_shown(self):
        def shown(*flags):
            environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
            out = [subprocess.run([PROGRAM, "doctor", self.config, *flags, *more], cwd=self.folder, env=environment, capture_output=True,
                                  text=True, timeout=60).stdout for more in ([], ["--json"])]
            line = next(line for line in out[0].splitlines() if line.startswith("network: "))
            return line, json.loads(out[1])

        line, found = shown()
        collectives = "collectives between hosts over encrypted TCP"
        self.assertEqual(line, "network: a run on one host uses none; on several hosts messages go over encrypted TCP, "
                               f"{collectives}; this host is on no trusted network")
        self.assertEqual((found["messages_between_hosts"], found["collectives_between_hosts"], found["trusted_networks_here"]),
                         ("over encrypted TCP", collectives, []))
        line, found = shown("--transport.trusted_networks=127.0.0.0/8")
        collectives = ("collectives between hosts on transport.trusted_networks (127.0.0.0/8) over UCX, not encrypted, between others over "
                       "encrypted TCP")
        self.assertIn(f"messages go over encrypted TCP, {collectives}; this host is on ", line)
        self.assertEqual(found["collectives_between_hosts"], collectives)

    def test_hosts_that_fail_or_never_join_are_named_with_the_reason(self):
        found = self.srun("--json", "--cluster.join_timeout_ms=4000", absent=["node3"], limited=["node2"])
        self.assertEqual({code for code, _, _ in found.values()}, {3}, found)
        document = json.loads(self.only(found, 1))
        self.assertEqual((document["ok"], document["exclude"]), (False, "node2,node3"))
        by_name = {m["name"]: m for m in document["machines"]}
        self.assertTrue(by_name["node1"]["ok"], document)
        self.assertIn("disk: cannot write to", by_name["node2"]["reason"])
        self.assertIn("did not join", by_name["node3"]["reason"])
        self.assertEqual([c["check"] for c in by_name["node2"]["checks"] if not c["ok"]], ["disk"])
        self.assertIn("--exclude=node2,node3", [e for _, _, e in found.values() if "exclude" in e][0])
        self.assertFalse(self.run_folder.exists())

    def hosts(self, *ranks, wait_ms=8000):
        """The command of each of HOSTS hosts without Slurm. Returns (exit code, stdout, stderr) by rank."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        commands = {r: subprocess.Popen([PROGRAM, "doctor", str(self.config), f"--run={self.folder / 'run'}", f"--nnodes={HOSTS}",
                                         f"--node-rank={r}", f"--cluster.join_timeout_ms={wait_ms}"], cwd=self.folder, env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in ranks}
        for command in commands.values():
            self.addCleanup(lambda c=command: c.poll() is None and c.kill())
        return {r: (c.returncode, *said) for r, c in commands.items() for said in [c.communicate(timeout=60)]}

    def test_hosts_without_slurm_are_checked_together_again_and_again(self):
        for _ in range(2):
            found = self.hosts(2, 0, 1)
            self.assertEqual({code for code, _, _ in found.values()}, {0}, found)
            self.assertIn("all 3 hosts are fit to train", self.only(found, 1))
            self.assertNotIn("cannot", "".join(said for _, _, said in found.values()))
        found = self.hosts(0, 1, wait_ms=3000)
        self.assertEqual({code for code, _, _ in found.values()}, {3}, found)
        self.assertIn("still waiting for 1 of 3 hosts, first for --node-rank=2", found[0][2])
        self.assertIn("1 of 3 hosts are not fit; task 2: it did not join", "".join(said for _, _, said in found.values()))
        self.train("run")  # what the checks have left is not in its way
        self.command("doctor", "--nnodes=2", "--node-rank=0", code=64)
        self.assertIn("name a folder that all hosts share", self.stderr)

    def test_doctor_in_the_shell_of_an_allocation_runs_srun_over_its_hosts(self):
        (self.folder / "bin").mkdir()
        srun = self.folder / "bin/srun"
        srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        srun.chmod(0o755)
        allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "6"}
        asked = self.command("doctor", self.config, "--run=/x/run", "--cluster.join_timeout_ms=9",
                             env={**allocation, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}).split("\n")
        self.assertEqual(asked[:4], ["--overlap", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1"])
        self.assertEqual(asked[asked.index("doctor"):-1], ["doctor", str(self.config), "--cluster.join_timeout_ms=9", "--run=/x/run"])
        # Without srun it prints the command and checks this machine.
        alone = self.command("doctor", self.config, env={**allocation, "PATH": "/nowhere"})
        self.assertIn("srun --overlap --nodes=3", self.stderr)
        self.assertIn("arithmetic   pass", alone)
        self.assertEqual(alone.splitlines()[-1], "this machine is fit to train")
        self.command("doctor", "--train.max_steps=5", code=64)
        self.assertIn("CONFIG is missing: --train.max_steps=5", self.stderr)
        self.assertTrue(json.loads(self.command("doctor", "--json"))["ok"])


class Diagnose(Case):
    STEPS = 100

    def diagnose(self, run, nodes):
        return json.loads(self.command("console", run, "-c", f"diagnose {nodes}", "--json"))

    def test_diagnose_loses_no_step_and_drains_a_node_that_fails(self):
        keys = ["--train.global_batch_size=8", *self.layout(2, 1), f"--train.max_steps={self.STEPS}", "--cluster.spares=1"]
        want = self.undisturbed(*keys)
        run, process = self.start("run", *keys)
        self.wait_for(lambda: last_step(run) >= 1, "a step")
        self.slow_down(run, next(n["name"] for n in status(run)["nodes"] if n["group"]), fault="slow_node")
        self.wait_for(lambda: last_step(run) >= 3 and status(run)["standby"] and status(run)["state"] == "training", "training and a standby")
        # While the run trains.
        found = self.diagnose(run, "all")
        self.assertEqual((set(found["machines"]), found["reason"]), ({"n0", "n1", "n2"}, "nothing is wrong"))
        self.assertIn("link", [c["check"] for c in found["machines"]["n0"]])
        step = last_step(run)
        self.wait_for(lambda: last_step(run) > step, "further steps")
        self.assertLess(last_step(run), self.STEPS)
        # While the run is paused; it stays paused.
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        step = status(run)["step"]
        self.assertEqual(set(self.diagnose(run, "n1")["machines"]), {"n1"})
        victim = next(n for n in status(run)["nodes"] if n["group"] == "g1")
        resource.prlimit(victim["pid"], resource.RLIMIT_FSIZE, (SMALL_FILES, resource.RLIM_INFINITY))
        shown = self.command("console", run, "-c", "diagnose all")
        self.assertRegex(shown, rf"(?m)^{victim['name']} .*! .*FAIL$")
        self.assertIn(f"{victim['name']} is drained: it failed its diagnosis: disk: cannot write", shown)
        self.assertTrue(status(run)["paused"])
        self.assertEqual((status(run)["step"], last_step(run)), (step, step))
        self.assertTrue(self.command("console", run, "-c", "why diagnosis").endswith(shown))
        self.command("console", run, "-c", f"diagnose {victim['name']}", code=64)
        self.assertIn("drained, not up", self.stderr)
        self.command("console", run, "-c", "resume")
        self.go_on()
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertTrue(any(f"takes the place of {victim['name']}" in e["reason"] for e in lines(run / "events.jsonl")))
        self.assertEqual(self.digest(run), want)
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, self.STEPS + 1)), "no step was trained twice")
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual(status(run)["incidents"], 0)
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
