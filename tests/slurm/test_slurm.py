"""Jobs, lost hosts, requeues and drained hosts under a real Slurm with eight nodes on this machine (cluster.sh).

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
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from common import PROGRAM, Case, events, kill, last_step, leftovers, lines, status, trainer_pids  # noqa: E402
from test_trust import listening  # noqa: E402

CLUSTER = HERE / "cluster.sh"


def slurm(*command, check=True):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


def processes(of_node):
    """All processes whose environment names this node of Slurm."""
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


def depth(pid):
    """Number of ancestors of a process."""
    return 1 + depth(parent(pid)) if pid > 1 else 0


def cpus(pid):
    return sorted(os.sched_getaffinity(pid))


def environment(pid):
    text = pathlib.Path(f"/proc/{pid}/environ").read_text()
    return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Slurm(Case):
    layout_flags = ["--cluster.nodes=2", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1",
                    "--parallel.strategy=hybrid_shard", "--train.global_batch_size=24"]
    steps = 400

    @classmethod
    def setUpClass(cls):
        cls.cluster = tempfile.mkdtemp(prefix="simplescale-slurm-")
        os.environ.setdefault("SIMPLESCALE_SLURM_PORT", "17500")
        cls.addClassCleanup(lambda: subprocess.run([CLUSTER, "stop", cls.cluster], capture_output=True, timeout=60))
        done = subprocess.run([CLUSTER, "start", cls.cluster, "8"], capture_output=True, text=True, timeout=60)
        if done.returncode == 77:
            raise unittest.SkipTest(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        cls.accounting = "no sacct" not in done.stderr
        os.environ["SLURM_CONF"] = f"{cls.cluster}/slurm.conf"

    # --- Helpers ---

    def submit(self, name, *overrides, steps=None):
        """Submits a job. Returns the run's folder and the job's number."""
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
            time.sleep(0.1)
        self.assertEqual((found["JobState"], found["ExitCode"]), (state, code), self.output(run))
        return found

    def wait_for_step(self, run, step=5, to_lose=lambda: None):
        """Slows the run down, by a node that trains and is not on the host to_lose(). Returns what ends that, and the host."""
        self.wait_for(lambda: last_step(run) >= 1, "step 1", timeout=40)
        host = to_lose()
        others = lambda: [n["name"] for n in status(run)["nodes"] if n["group"] and n["host"] != host]
        go_on = self.slow_down(run, self.wait_for(others, "a node that trains elsewhere")[0])
        self.wait_for(lambda: last_step(run) >= step and status(run)["standby"], f"step {step}", timeout=40)
        return go_on, host

    def reference(self):
        return self.undisturbed(*self.layout_flags, f"--train.max_steps={self.steps}")

    def check_resumed_by_itself(self, run, lost_supervisor=False):
        """Checks that the job was interrupted once and resumed, and that no step was lost or repeated. Steps may be repeated if
        the supervisor was lost."""
        self.check_whole(run)
        events = lines(run / "events.jsonl")
        saved = [e["step"] for e in events if e["kind"] == "checkpoint_saved"][0]
        self.assertGreaterEqual(saved, 5)
        self.assertLess(saved, self.steps, "it was interrupted")
        self.assertEqual([e["reason"] for e in events if e["kind"] == "started"], ["", f"resumes from step {saved}"])
        made = [m["step"] for m in lines(run / "metrics.jsonl")]
        self.assertEqual(sorted(set(made)) if lost_supervisor else made, list(range(1, self.steps + 1)))

    def exit_codes(self, *jobs):
        """Exit codes of the jobs and their steps in sacct: from slurmdbd, or from jobcomp/filetxt, which has no steps."""
        source = "--duplicates" if self.accounting else "--completion"
        text = slurm("sacct", source, "--noheader", "--parsable2", "--format=jobid,exitcode", "--jobs", ",".join(jobs))
        return {tuple(line.split("|")) for line in text.splitlines()}

    def not_of_the_script(self, run, job):
        script = self.job(job)["BatchHost"]
        return next(n["name"] for n in status(run)["nodes"] if n["group"] and n["host"] != script)

    def wait_for_one_group(self, run):
        self.wait_for(lambda: any("1 group instead of 2" in e["reason"] for e in events(run, "joined")),
                      "one group")

    def check_whole(self, run):
        self.assertEqual(self.digest(run), self.reference())
        self.assertIn("each sample exactly once", self.verify(run))
        self.wait_for(lambda: not leftovers(run), "its processes to end", timeout=10)

    def host(self, run, node):
        return next(n["host"] for n in status(run)["nodes"] if n["name"] == node)

    def kill_host(self, host):
        """Simulates a power failure: kills slurmd, the step's daemon and the run's processes. All are stopped first, so that none
        can react. Children are killed before their parents, since the kernel continues stopped orphans."""
        daemon = int(pathlib.Path(f"{self.cluster}/{host}.pid").read_text())
        ours = [p for p in processes(host) if name_of(p) not in ("slurmd", "")]
        steps = {parent(p) for p in ours}
        victims = {daemon, *ours, *(p for p in steps if name_of(p) == "slurmstepd")}
        self.assertGreater(len(victims), 4, "slurmd, slurmstepd, the launcher, the agent and its trainers")
        victims = sorted(victims, key=depth, reverse=True)
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

    def test_a_sweep_as_a_job_array(self):
        self.config.write_text(self.config.read_text() + "\n[sweep]\nseeds = [1, 2]\n")
        sweep, flags = self.folder / "sweep", [*self.layout_flags, "--train.max_steps=40"]
        job = re.search(r"submitted as job array (\d+)", self.command("sweep", self.config, f"--run={sweep}", "--submit", *flags))[1]
        self.addCleanup(lambda: slurm("scancel", "--quiet", job, check=False))
        self.wait_for(lambda: [last_step(sweep / f"00{i}-seed-{i + 1}") for i in range(2)] == [40, 40], "both runs", timeout=180)
        self.wait_for(lambda: not slurm("squeue", "--noheader", "--jobs", job, check=False), "the end of the array", timeout=180)
        self.command("sweep", self.config, f"--run={sweep}", "--summary", *flags)
        table = json.loads((sweep / "summary.json").read_text())
        self.assertEqual([(r["state"], r["step"]) for r in table], [("finished", 40)] * 2, self.output(sweep))
        self.assertIn("nothing to submit", self.command("sweep", self.config, f"--run={sweep}", "--submit", *flags))

    def test_a_submitted_job_runs_to_its_end(self):
        script = self.command("submit", self.config, f"--run={self.folder / 'dry'}", *self.layout_flags, "--train.max_steps=5",
                              "--cluster.spares=1", "--slurm.time_minutes=90", "--slurm.options=--comment=hello --nice=3", "--dry-run")
        for option in ("nodes=3", "ntasks-per-node=1", "no-kill", "requeue", "signal=USR1@120", "open-mode=append", "time=90",
                       "comment=hello", "nice=3", f"output={self.folder}/dry/logs/slurm-%j.out"):
            self.assertIn(f"#SBATCH --{option}\n", script)
        self.assertFalse((self.folder / "dry").exists())
        self.assertNotIn("submitted", script)
        self.assertEqual(slurm("squeue", "--noheader"), "")

        run, job = self.submit("run")
        self.wait_for_end(run, job)
        self.check_whole(run)
        self.assertEqual({n["host"] for n in status(run)["nodes"]},
                         set(slurm("scontrol", "show", "hostnames", self.job(job)["NodeList"]).split()))
        self.assertIn(f"step {self.steps}", (run / f"logs/slurm-{job}.out").read_text())

        source = self.folder / "removed.bin"
        source.write_bytes(self.data.read_bytes())
        flags = [f"--data.source={source}", "--slurm.options=--hold"]
        run, job = self.submit("wrong", *flags)
        source.unlink()
        slurm("scontrol", "release", job)
        self.wait_for_end(run, job, state="FAILED", code="65:0")
        self.assertIn("removed.bin", (run / f"logs/slurm-{job}.out").read_text())
        self.command("submit", self.config, f"--run={self.folder / 'not'}", *self.layout_flags, "--train.max_steps=5", *flags, code=65)

    def test_values_that_cannot_be_used_in_a_script_are_refused(self):
        for wrong in ("--slurm.partition=a b", "--slurm.account=$(reboot)", "--slurm.options=--comment=`reboot`",
                      "--slurm.options=reboot", f"--run={self.folder}/a'b"):
            self.command("submit", self.config, wrong, "--train.max_steps=5", code=78)

    def test_a_killed_node_is_replaced_by_a_spare(self):
        run, job = self.submit("run", "--cluster.spares=1")
        go_on, host = self.wait_for_step(run, to_lose=lambda: self.host(run, self.not_of_the_script(run, job)))
        self.wait_for(lambda: {e["subject"] for e in events(run, "trainer_up")} >=
                      {f"n{n}.{t}" for n in range(3) for t in range(2)}, "the spare's trainers")
        self.kill_host(host)
        self.wait_for(lambda: any("takes the place of" in e["reason"] for e in events(run, "joined")),
                      "the spare")
        self.command("console", run, "-c", "pause")  # until Slurm has noticed the loss
        self.wait_for(lambda: self.slurm_sees_down(host), f"Slurm to see that {host} is down", timeout=30)
        self.assertEqual(self.job(job)["JobState"], "RUNNING")
        # srun reports the loss in the script's output file, to which the log rules apply.
        notice = self.wait_for(lambda: [e for e in lines(run / "events.jsonl") if e.get("rule") == "slurm_node_failure"], "srun's notice")
        self.assertEqual((notice[0]["file"], notice[0]["subject"]), (f"slurm-{job}.out", "n0"))
        self.assertIn(f"Node failure on {host}", self.command("logs", run, f"slurm-{job}"))
        self.command("console", run, "-c", "resume")
        go_on()
        self.wait_for_end(run, job)
        self.check_whole(run)

    def lose_a_host_without_a_spare(self):
        run, job = self.submit("no-spare")
        go_on, host = self.wait_for_step(run, to_lose=lambda: self.host(run, self.not_of_the_script(run, job)))
        self.kill_host(host)
        self.wait_for_one_group(run)
        go_on()
        self.wait_for_end(run, job)
        self.check_whole(run)

    def lose_the_scripts_host(self):
        """Another task requeues the job in place of the lost batch script."""
        run, job = self.submit("script")
        _, host = self.wait_for_step(run, to_lose=lambda: self.job(job)["BatchHost"])
        self.kill_host(host)
        self.wait_for_one_group(run)
        slurm("scancel", "--signal=USR1", job)  # as Slurm does before the time limit
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=180)
        self.wait_for_end(run, job)
        self.check_resumed_by_itself(run, lost_supervisor=True)
        self.assertIn(f"noticed the loss of {host}", (run / f"logs/slurm-{job}.out").read_text())

    def reach_the_time_limit(self):
        """Slurm checks time limits every 30 s. The limit is set once the run has begun, so that a slow machine does not matter."""
        run, job = self.submit("limit", "--slurm.time_minutes=60", "--slurm.save_before_end_s=100")
        self.wait_for_step(run)
        self.command("console", run, "-c", "pause")
        before = self.job(job)
        hours, minutes, _ = map(int, before["RunTime"].split(":"))
        slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")  # in one or two minutes
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=70)
        slurm("scontrol", "update", f"JobId={job}", "TimeLimit=60")
        self.wait_for_end(run, job)
        self.assertGreater(self.job(job)["StartTime"], before["StartTime"])
        self.assertNotIn("DUE TO TIME LIMIT", self.output(run))
        self.check_resumed_by_itself(run)

    def get_usr1(self):
        run, job = self.submit("usr1")
        self.wait_for_step(run)
        slurm("scancel", "--signal=USR1", job)  # as Slurm does before the time limit
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=180)
        self.wait_for_end(run, job)
        self.check_resumed_by_itself(run)
        if self.accounting:
            want = {(f"{job}.batch", "75:0"), (job, "0:0")}
            self.wait_for(lambda: want <= self.exit_codes(job), f"{want} in {self.exit_codes(job)}", timeout=20)

    def test_two_lost_hosts_a_time_limit_and_usr1(self):
        """Slurm takes half a minute for each of these scenarios, so they run concurrently."""
        self.reference()
        with ThreadPoolExecutor(4) as pool:
            scenes = [pool.submit(s) for s in (self.lose_the_scripts_host, self.reach_the_time_limit, self.lose_a_host_without_a_spare,
                                               self.get_usr1)]
        for scene in scenes:
            scene.result()

    def test_a_preempted_job_saves_and_resumes(self):
        self.reference()
        jobs = {name: self.submit(name, f'--slurm.partition="{name}"') for name in ("scavenge", "scavenge-now")}
        for run, _ in jobs.values():
            self.wait_for_step(run)
        urgent = slurm("sbatch", "--parsable", "--partition=all", "--exclusive", "--nodes=8", "--output=/dev/null", "--wrap=sleep 1")
        self.wait_for(lambda: [self.job(job)["Restarts"] for _, job in jobs.values()] == ["1", "1"], "both requeues", timeout=180)
        for run, job in jobs.values():
            self.wait_for_end(run, job)
            self.check_resumed_by_itself(run)
        self.assertEqual(self.job(urgent)["JobState"], "COMPLETED")

    def test_the_runs_exit_code_is_the_jobs_and_in_sacct(self):
        one = ["--cluster.nodes=1", "--cluster.trainers_per_node=1"]
        stops, cancelled = self.submit("cancelled", *one, steps=100000)
        lost, gave_up = self.submit("gave-up", *one, "--supervision.max_restarts=0",
                                    '--inject.faults=[{ step = 5, kind = "kill_trainer", target = "n0.0" }]')
        wrong, bad_config = self.submit("bad-config", *one, '--slurm.options="--hold"')
        toml = wrong / "control/submit.toml"
        toml.write_text(toml.read_text() + "\n[nonsense]\nkey = 1\n")
        slurm("scontrol", "release", bad_config)
        good, done = self.submit("done", *one, steps=20)
        self.wait_for_end(wrong, bad_config, "FAILED", "78:0")
        self.wait_for(lambda: last_step(stops) >= 5, "step 5")
        slurm("scancel", cancelled)
        self.wait_for_end(stops, cancelled, "CANCELLED", "75:0")
        self.wait_for_end(lost, gave_up, "FAILED", "3:0")
        self.wait_for_end(good, done)
        want = {(gave_up, "3:0"), (bad_config, "78:0"), (done, "0:0")}
        # In slurmdbd a cancelled job ends when it is cancelled, before its script has an exit code.
        want.add((f"{cancelled}.batch" if self.accounting else cancelled, "75:0"))
        jobs = (cancelled, gave_up, bad_config, done)
        self.wait_for(lambda: want <= self.exit_codes(*jobs), f"{want} in {self.exit_codes(*jobs)}", timeout=20)

    def test_scancel_saves_and_a_new_job_resumes(self):
        run, job = self.submit("run")
        self.wait_for_step(run)
        slurm("scancel", job)
        self.wait_for_end(run, job, state="CANCELLED", code="75:0")
        self.assertEqual(self.job(job)["Restarts"], "0")
        step = max(int(c.name[5:]) for c in (run / "checkpoints").glob("step-*"))
        self.assertGreaterEqual(step, 5)
        self.assertLess(step, self.steps)
        run, job = self.submit("run")
        self.wait_for_end(run, job)
        self.check_whole(run)

    def test_a_node_that_fails_its_diagnosis_is_drained_and_excluded(self):
        # One host is limited to files of 4 MB, which only the disk check of the diagnosis exceeds.
        run, job = self.submit("run", "--cluster.spares=1")
        self.wait_for_step(run)
        victim = next(n for n in status(run)["nodes"] if n["group"] and n["host"] != self.job(job)["BatchHost"])
        resource.prlimit(victim["pid"], resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        self.command("console", run, "-c", f"diagnose {victim['name']}")
        host = victim["host"]
        self.addCleanup(lambda: slurm("scontrol", "update", f"nodename={host}", "state=resume", check=False))
        event = self.wait_for(lambda: events(run, "drained_in_slurm"), "the drain")[0]
        self.assertIn(host, event["reason"])
        shown = slurm("scontrol", "show", "node", host)
        self.assertIn("DRAIN", shown)
        self.assertIn(f"Reason=simplescale job {job}: disk", shown)
        slurm("scontrol", "update", f"nodename={host}", "state=resume")  # now Slurm could assign the host to the job again
        slurm("scancel", "--batch", "--signal=USR1", job)
        self.wait_for(lambda: self.job(job)["Restarts"] == "1", "the requeue", timeout=180)
        self.wait_for(lambda: self.job(job)["ExcNodeList"] == host, "the exclusion")
        end = self.wait_for_end(run, job)
        self.assertNotIn(host, slurm("scontrol", "show", "hostnames", end["NodeList"]).split())
        self.check_whole(run)

    def test_a_job_on_one_host_listens_on_no_tcp_port_and_one_on_two_hosts_does(self):
        for hosts, more in ((1, ["--slurm.tasks_per_node=2", "--slurm.cpus_per_task=1"]), (2, [])):
            run, job = self.submit(f"on-{hosts}", *more, steps=100000)
            self.wait_for_step(run, 3)
            self.assertEqual(len({n["host"] for n in status(run)["nodes"] if n["pid"]}), hosts)
            # srun, whose first argument is an option, listens for Slurm.
            ports = {(name, port) for name, port in listening(leftovers(run)) if not name.startswith("--")}
            (self.assertFalse if hosts == 1 else self.assertTrue)(ports, ports)
            slurm("scancel", job)
            self.wait_for_end(run, job, state="CANCELLED", code="75:0")

    def test_doctor_checks_the_hosts_of_an_allocation(self):
        command = ["salloc", "--quiet", "--nodes=3", "--exclusive", PROGRAM, "doctor", self.config, "--train.max_steps=5",
                   f"--run={self.folder / 'run'}"]
        done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True, timeout=60, cwd=self.folder)
        document = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(([m["host"] for m in document["machines"]], document["ok"]), (["node1", "node2", "node3"], True))
        self.assertIn("link", [c["check"] for c in document["machines"][0]["checks"]])

    def test_hosts_of_different_sizes_and_cpu_binding(self):
        """node8 has twice the resources of node7. The run sees every CPU as a NUMA node, whatever this machine has."""
        numa = self.folder / "numa"
        for cpu in range(os.cpu_count()):
            (numa / f"node{cpu}").mkdir(parents=True)
            (numa / f"node{cpu}/cpulist").write_text(f"{cpu}\n")
        os.environ["SIMPLESCALE_NUMA"] = str(numa)
        self.addCleanup(os.environ.pop, "SIMPLESCALE_NUMA")
        run, job = self.submit("run", "--cluster.nodes=3", "--supervision.warm_processes=1", "--slurm.tasks_per_node=0",
                               "--slurm.cpus_per_task=2", "--slurm.gpus_per_node=2", "--slurm.options=--nodelist=node[7-8]")
        go_on, _ = self.wait_for_step(run)
        self.command("console", run, "-c", "pause")
        nodes = sorted((n for n in status(run)["nodes"]), key=lambda n: (n["host"], n["name"]))
        self.assertEqual([n["host"] for n in nodes], ["node7", "node8", "node8"])
        gpus = [environment(n["pid"])["CUDA_VISIBLE_DEVICES"] for n in nodes]
        self.assertEqual([gpus[0], *sorted(gpus[1:])], ["0,1", "0,1", "2,3"])
        for node in nodes:
            mask, own = cpus(node["pid"]), [cpus(t["pid"]) for t in node["trainers"]]
            self.assertLessEqual(len(mask), 2, "as Slurm has bound it")
            if len(mask) == 1:
                self.assertEqual(own, [mask, mask])
            else:
                self.assertEqual(own, [mask[:1], mask[1:]])
            self.assertEqual(environment(node["pid"])["SIMPLESCALE_THREADS"], "1")
        # A warm process that replaces a trainer is moved to that trainer's CPUs.
        name, pid = nodes[0]["trainers"][1]["name"], nodes[0]["trainers"][1]["pid"]
        before = cpus(pid)
        kill(pid)
        after = self.wait_for(lambda: (now := trainer_pids(run)[name]) not in (0, pid) and now, "another process")
        self.wait_for(lambda: cpus(after) == before, "its CPUs")
        self.command("console", run, "-c", "resume")
        go_on()
        self.wait_for_end(run, job)
        self.check_whole(run)
        # --gpus-per-node: only node8 has four GPUs, no node has five.
        run, job = self.submit("four", "--cluster.nodes=1", "--slurm.gpus_per_node=4", steps=5)
        self.wait_for_end(run, job)
        self.assertEqual(status(run)["nodes"][0]["host"], "node8")
        self.command("submit", self.config, f"--run={self.folder / 'five'}", "--slurm.gpus_per_node=5", code=78)

    def test_salloc_and_srun_with_two_tasks_on_one_host(self):
        run = self.folder / "run"
        flags = [f"--train.max_steps={self.steps}", *self.layout_flags]
        # Two tasks on one host, as if it had twice the devices, and one on another; each bound to one CPU.
        salloc = subprocess.Popen(
            ["salloc", "--quiet", "--nodes=2", "--exclusive", "srun", "--nodes=2", "--ntasks=3", "--distribution=block", "--overcommit",
             "--no-kill", "--kill-on-bad-exit=0", "taskset", "--cpu-list", "0", PROGRAM, "train", self.config, f"--run={run}", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.addCleanup(lambda: salloc.poll() is None and salloc.kill())
        go_on, _ = self.wait_for_step(run)
        document = status(run)
        self.assertEqual(sorted(n["host"] for n in document["nodes"] if n["pid"]), ["node1", "node1", "node2"])
        for pid in [t["pid"] for n in document["nodes"] for t in n["trainers"] if t["pid"]]:
            self.assertIn("Cpus_allowed_list:\t0\n", pathlib.Path(f"/proc/{pid}/status").read_text())
        go_on()
        output, _ = salloc.communicate(timeout=50)
        self.assertEqual(salloc.returncode, 0, output + self.output(run))
        self.check_whole(run)
