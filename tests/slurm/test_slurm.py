"""Under a real Slurm of six nodes on this machine (cluster.sh): jobs, lost nodes, requeues, drained nodes.

Skips visibly where Slurm is not installed or cannot run."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from common import PROGRAM, Case, last_step, leftovers, lines, status  # noqa: E402

CLUSTER = HERE / "cluster.sh"


def slurm(*command, check=True):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


def processes(of_node):
    """Every process whose environment says that it belongs to this node of Slurm."""
    mark, found = f"SLURMD_NODENAME={of_node}".encode(), []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def parent(pid):
    return int(re.search(r"PPid:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Slurm(Case):
    layout_flags = ["--cluster.nodes=2", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1",
                    "--parallel.strategy=hybrid_shard", "--train.global_batch_size=48"]
    steps = 300
    references = {}

    @classmethod
    def setUpClass(cls):
        cls.cluster = tempfile.mkdtemp(prefix="simplescale-slurm-")
        os.environ.setdefault("SIMPLESCALE_SLURM_PORT", "17500")
        cls.addClassCleanup(lambda: subprocess.run([CLUSTER, "stop", cls.cluster], capture_output=True, timeout=60))
        done = subprocess.run([CLUSTER, "start", cls.cluster, "6"], capture_output=True, text=True, timeout=60)
        if done.returncode == 77:
            raise unittest.SkipTest(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        os.environ["SLURM_CONF"] = f"{cls.cluster}/slurm.conf"

    # --- What Slurm says ---

    def submit(self, name, *overrides, steps=None):
        """The run's folder and the job's number."""
        run = self.folder / name
        text = self.command("submit", self.config, f"--run={run}", *self.layout_flags, f"--train.max_steps={steps or self.steps}",
                            *overrides)
        job = re.search(r"submitted as job (\d+)", text)[1]
        self.addCleanup(lambda: slurm("scancel", "--quiet", job, check=False))
        return run, job

    def job(self, number):
        text = slurm("scontrol", "show", "job", number, "--oneliner")
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def output(self, run):
        return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in sorted((run / "logs").glob("*")))

    def wait_for_end(self, run, job, state="COMPLETED", code="0:0", timeout=50):
        end = time.monotonic() + timeout
        while (found := self.job(job))["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
            self.assertLess(time.monotonic(), end, f"job {job} is {found['JobState']}\n{self.output(run)}")
            time.sleep(0.1)  # Slurm announces nothing to a test
        self.assertEqual((found["JobState"], found["ExitCode"]), (state, code), self.output(run))
        return found

    def wait_for_step(self, run, step):
        self.wait_for(lambda: last_step(run) >= step and status(run)["standby"], f"step {step}", timeout=40)

    def reference(self):
        """The digest of a run without faults, by the local launcher on one node."""
        key = (self.steps,)
        if key not in self.references:
            run = self.train("reference", *self.layout_flags, f"--train.max_steps={self.steps}", "--cluster.nodes=1")
            self.references[key] = self.digest(run)
        return self.references[key]

    def check_whole(self, run):
        self.assertEqual(self.digest(run), self.reference())
        self.assertIn("each sample exactly once", self.verify(run))
        self.wait_for(lambda: not leftovers(run), "its processes to end", timeout=10)

    def host(self, run, node):
        return next(n["host"] for n in status(run)["nodes"] if n["name"] == node)

    def kill_host(self, host):
        """As if it lost its power: slurmd, the step's daemon, our processes. Stopped first, so that none can react."""
        daemon = int(pathlib.Path(f"{self.cluster}/{host}.pid").read_text())
        ours = [p for p in processes(host) if name_of(p) not in ("slurmd", "")]
        steps = {parent(p) for p in ours if name_of(p).startswith("simplescale")}
        victims = {daemon, *ours, *(p for p in steps if name_of(p) == "slurmstepd")}
        self.assertGreater(len(victims), 4, "slurmd, slurmstepd, the launcher, the agent and its trainers")
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        self.addCleanup(lambda: (slurm(CLUSTER, "node", self.cluster, host), self.wait_for(
            lambda: slurm("sinfo", "--noheader", "--format=%T", "--nodes", host) == "idle", f"{host} to come back", timeout=30)))

    def slurm_sees_down(self, host):
        return slurm("sinfo", "--noheader", "--format=%T", "--nodes", host).startswith("down")

    # --- Tests ---

    def test_a_sweep_is_a_job_array(self):
        self.config.write_text(self.config.read_text() + "\n[sweep]\nseeds = [1, 2]\n")
        sweep, flags = self.folder / "sweep", [*self.layout_flags, "--train.max_steps=40"]
        job = re.search(r"submitted as job array (\d+)", self.command("sweep", self.config, f"--run={sweep}", "--submit", *flags))[1]
        self.addCleanup(lambda: slurm("scancel", "--quiet", job, check=False))
        self.wait_for(lambda: [last_step(sweep / f"00{i}-seed-{i + 1}") for i in range(2)] == [40, 40], "both runs", timeout=60)
        self.wait_for(lambda: not slurm("squeue", "--noheader", "--jobs", job, check=False), "the end of the array", timeout=60)
        self.command("sweep", self.config, f"--run={sweep}", "--summary", *flags)
        table = json.loads((sweep / "summary.json").read_text())
        self.assertEqual([(r["state"], r["step"]) for r in table], [("finished", 40)] * 2, self.output(sweep))
        self.assertIn("nothing to submit", self.command("sweep", self.config, f"--run={sweep}", "--submit", *flags))

    def test_submit_to_finish(self):
        script = self.command("submit", self.config, f"--run={self.folder / 'dry'}", *self.layout_flags, "--train.max_steps=5",
                              "--cluster.spares=1", "--slurm.time_minutes=90", "--slurm.options=--comment=hello --nice=3", "--dry-run")
        for option in ("nodes=3", "ntasks-per-node=1", "no-kill", "requeue", "signal=B:USR1@120", "open-mode=append", "time=90",
                       "comment=hello", "nice=3", f"output={self.folder}/dry/logs/slurm-%j.out"):
            self.assertIn(f"#SBATCH --{option}\n", script)
        self.assertEqual((self.folder / "dry/control/submit.sh").read_text(), script)
        self.assertNotIn("submitted", script)
        self.assertEqual(slurm("squeue", "--noheader"), "")

        run, job = self.submit("run")
        self.wait_for_end(run, job)
        self.check_whole(run)
        self.assertEqual({n["host"] for n in status(run)["nodes"]}, {"node1", "node2"})
        self.assertIn(f"step {self.steps}", (run / f"logs/slurm-{job}.out").read_text())

        run, job = self.submit("wrong", '--data.source="/nowhere"')
        self.wait_for_end(run, job, state="FAILED", code="65:0")
        self.assertIn("/nowhere", (run / f"logs/slurm-{job}.out").read_text())

    def test_what_cannot_stand_in_a_script_is_refused(self):
        for wrong in ("--slurm.partition=a b", "--slurm.account=$(reboot)", "--slurm.options=--comment=`reboot`",
                      "--slurm.options=reboot", f"--run={self.folder}/a'b"):
            self.command("submit", self.config, wrong, "--train.max_steps=5", code=78)

    def test_a_killed_node_is_replaced_by_a_spare(self):
        run, job = self.submit("run", "--cluster.spares=1")
        self.wait_for_step(run, 20)
        victim = next(n["name"] for n in status(run)["nodes"] if n["group"] and n["host"] != self.job(job)["BatchHost"])
        host = self.host(run, victim)
        self.kill_host(host)
        self.wait_for(lambda: any("takes the place of" in e["reason"] for e in lines(run / "events.jsonl") if e["kind"] == "joined"),
                      "the spare")
        self.command("console", run, "-c", "pause")  # until Slurm has noticed, too
        self.wait_for(lambda: self.slurm_sees_down(host), f"Slurm to see that {host} is down", timeout=30)
        self.assertEqual(self.job(job)["JobState"], "RUNNING")
        self.command("console", run, "-c", "resume")
        self.wait_for_end(run, job)
        self.check_whole(run)

    def test_without_a_spare_the_other_group_goes_on(self):
        run, job = self.submit("run")
        self.wait_for_step(run, 20)
        victim = next(n["name"] for n in status(run)["nodes"] if n["host"] != self.job(job)["BatchHost"])
        self.kill_host(self.host(run, victim))
        self.wait_for(lambda: any("1 groups instead of 2" in e["reason"] for e in lines(run / "events.jsonl") if e["kind"] == "joined"),
                      "one group")
        self.wait_for_end(run, job)
        self.check_whole(run)

    def test_told_of_the_time_limit_it_saves_is_requeued_and_goes_on(self):
        run, job = self.submit("run")
        self.wait_for_step(run, 20)
        slurm("scancel", "--batch", "--signal=USR1", job)  # as --signal=B:USR1@… does
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=30)
        saved = self.wait_for(lambda: [e["step"] for e in lines(run / "events.jsonl") if e["kind"] == "checkpoint_saved"], "a checkpoint")
        self.assertLess(saved[0], self.steps, "it was interrupted")
        self.wait_for_end(run, job)
        self.check_whole(run)
        started = [e["reason"] for e in lines(run / "events.jsonl") if e["kind"] == "started"]
        self.assertEqual(started, ["", f"goes on from step {saved[0]}"])
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, self.steps + 1)), "no step was made twice")

    def test_scancel_saves_and_a_new_job_goes_on(self):
        run, job = self.submit("run")
        self.wait_for_step(run, 20)
        slurm("scancel", job)
        self.wait_for_end(run, job, state="CANCELLED", code="75:0")
        self.assertEqual(self.job(job)["Restarts"], "0")
        step = max(int(c.name[5:]) for c in (run / "checkpoints").glob("step-*"))
        self.assertGreaterEqual(step, 20)
        self.assertLess(step, self.steps)
        run, job = self.submit("run")
        self.wait_for_end(run, job)
        self.check_whole(run)

    def test_a_node_that_fails_its_diagnosis_is_drained_and_excluded(self):
        # One host cannot write more than 4 MB to a file: training does not need that, the diagnosis does.
        run, job = self.submit("run", "--cluster.spares=1")
        self.wait_for_step(run, 20)
        victim = next(n for n in status(run)["nodes"] if n["group"] and n["host"] != self.job(job)["BatchHost"])
        resource.prlimit(victim["pid"], resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        self.command("console", run, "-c", f"diagnose {victim['name']}")
        host = victim["host"]
        self.addCleanup(lambda: slurm("scontrol", "update", f"nodename={host}", "state=resume", check=False))
        event = self.wait_for(lambda: [e for e in lines(run / "events.jsonl") if e["kind"] == "drained_in_slurm"], "the drain")[0]
        self.assertIn(host, event["reason"])
        shown = slurm("scontrol", "show", "node", host)
        self.assertIn("DRAIN", shown)
        self.assertIn(f"Reason=simplescale job {job}: disk", shown)
        slurm("scontrol", "update", f"nodename={host}", "state=resume")  # Slurm would give it to the job again
        slurm("scancel", "--batch", "--signal=USR1", job)
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=30)
        self.wait_for(lambda: self.job(job)["ExcNodeList"] == host, "the exclusion")
        end = self.wait_for_end(run, job)
        self.assertNotIn(host, slurm("scontrol", "show", "hostnames", end["NodeList"]).split())
        self.check_whole(run)

    def test_doctor_examines_the_hosts_of_an_allocation(self):
        command = ["salloc", "--quiet", "--nodes=3", "--exclusive", PROGRAM, "doctor", self.config, f"--run={self.folder / 'run'}"]
        done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True, timeout=60, cwd=self.folder)
        page = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(([m["host"] for m in page["machines"]], page["ok"]), (["node1", "node2", "node3"], True))
        self.assertIn("link", [c["check"] for c in page["machines"][0]["checks"]])

    def test_salloc_and_srun_with_two_tasks_on_one_host_and_bound_cpus(self):
        run = self.folder / "run"
        flags = [f"--train.max_steps={self.steps}", *self.layout_flags]
        # As on a host with twice the devices: two nodes of ours there, one on the other; each bound to one CPU.
        salloc = subprocess.Popen(
            ["salloc", "--quiet", "--nodes=2", "--exclusive", "srun", "--nodes=2", "--ntasks=3", "--distribution=block", "--overcommit",
             "--no-kill", "--kill-on-bad-exit=0", "taskset", "--cpu-list", "0", PROGRAM, "train", self.config, f"--run={run}", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.addCleanup(lambda: salloc.poll() is None and salloc.kill())
        self.wait_for_step(run, 5)
        page = status(run)
        self.assertEqual(sorted(n["host"] for n in page["nodes"] if n["pid"]), ["node1", "node1", "node2"])
        for pid in [t["pid"] for n in page["nodes"] for t in n["trainers"] if t["pid"]]:
            self.assertIn("Cpus_allowed_list:\t0\n", pathlib.Path(f"/proc/{pid}/status").read_text())
        output, _ = salloc.communicate(timeout=50)
        self.assertEqual(salloc.returncode, 0, output + self.output(run))
        self.check_whole(run)


if __name__ == "__main__":
    unittest.main()
