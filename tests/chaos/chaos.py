#!/usr/bin/env python3
"""Trains with real processes under a random schedule of faults and compares with the same run without faults.

    chaos.py [--faults 30] [--seed 1] [--nodes 2] [--trainers 2] [--spares 1] [--group-nodes 1] [--strategy hybrid_shard]
             [--batch 48] [--kinds a,b,...] [--set KEY=VALUE ...] [--file-faults SEED] [--file-rates EFFECT=RATE;...]
             [--file-folder checkpoints] [--hosts]

A reference run makes the same steps without faults. The other run gets a fault after every few committed steps, at a random
moment of a step, and sometimes a second fault during the recovery from the first. If the run ends with the exit code for a
restart (all agents are gone), the script starts it again, as a user would. With --file-faults the file system of the faulted
run delays, fails, tears and hangs, too, at random calls of its processes (file_faults/faults.hpp). With --hosts each node is a host: a network namespace, whose cable
is one more fault (root). Checks at the end:

    JOB-1  No committed step was made again, except after all processes were killed or where an event says that no newer
           step had a copy of every shard left.
    JOB-2  `verify`: the committed history has each sample exactly once.
    JOB-4  Nothing took longer than its deadline, and no process is left.
    JOB-6  The digests of both runs are equal.
    GEN-2  No number of a generation was used twice.

Prints a line for each fault and a JSON summary at the end. A failure prints the command that repeats it and keeps the folder.
"""

import argparse
import collections
import errno
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import namespaces  # noqa: E402
from common import BIN, PROGRAM, TINY, last_step, leftovers, lines, status, tokens  # noqa: E402

STEPS_PER_FAULT = 25
DEADLINE_S = 90  # between two committed steps
FILE_RATES = "delay=0.02;hang=0.0003;outage=0.0001;fail=0.0005;tear=0.001;replay=0.002;stale=0.05;stale.list=0"


class Broken(Exception):
    pass


def pids_of(run):
    page = status(run) or {}
    agents = {n["name"]: n["pid"] for n in page.get("nodes", []) if n.get("pid")}
    trainers = {t["name"]: t["pid"] for n in page.get("nodes", []) for t in n["trainers"] if t.get("pid")}
    leaders = [page.get(who) for who in ("supervisor", "standby")]
    return agents, trainers, [who["pid"] for who in leaders if who]


def send_signal(pid, number):
    try:
        os.kill(pid, number)
        return True
    except OSError:
        return False


class Chaos:
    def __init__(self, flags, folder):
        self.flags, self.folder, self.random = flags, folder, random.Random(flags.seed)
        self.data = folder / "tokens.bin"
        self.data.write_bytes(tokens(60000, TINY["model.vocab"]).tobytes())
        self.steps = (flags.faults + 1) * STEPS_PER_FAULT
        self.done = collections.Counter()
        self.damaged = -1  # step of the newest checkpoint that was damaged
        self.to_wake = []  # (time, pid) of stopped processes
        self.restarts = 0
        self.network = namespaces.Network(flags.nodes + flags.spares) if flags.hosts else None
        self.processes = {}  # by the rank of the host, of `train`
        self.to_plug_in = []  # (time, host) of cables that are out

    def config(self):
        path = self.folder / "chaos.toml"
        keys = {**TINY, "data.source": f'"{self.data}"', "train.max_steps": self.steps, "train.global_batch_size": self.flags.batch,
                "cluster.nodes": self.flags.nodes, "cluster.trainers_per_node": self.flags.trainers,
                "cluster.spares": self.flags.spares, "cluster.balance": '"auto"', "parallel.group_nodes": self.flags.group_nodes, "parallel.strategy": f'"{self.flags.strategy}"',
                "supervision.max_restarts": 100000, "supervision.give_up_after_cycles": 50,
                "parallel.collective_timeout_ms": 5000, "supervision.progress_timeout_ms": 3000,
                "checkpoint.disk_every_steps": 25, **dict(item.split("=", 1) for item in self.flags.set)}
        sections = {}
        for key, value in keys.items():
            section, _, leaf = key.partition(".")
            sections.setdefault(section, []).append(f"{leaf} = {value}")
        path.write_text("\n".join(f"[{s}]\n" + "\n".join(body) + "\n" for s, body in sections.items()))
        return path

    def start(self, rank):
        """Starts the run, or what a host does for it."""
        hosts = [f"--nnodes={len(self.network.spaces)}", f"--node-rank={rank}"] if self.network else []
        self.processes[rank] = subprocess.Popen(
            [*self.within(rank), PROGRAM, "train", str(self.config()), f"--run={self.run}", *hosts], cwd=self.folder,
            env=self.environment(self.run), stdout=open(self.folder / "train.out", "a"), stderr=subprocess.STDOUT)

    def within(self, rank):
        return ["ip", "netns", "exec", self.network.spaces[rank]] if self.network else []

    def environment(self, run):
        """Preloads the faults of the file system into all processes of the run."""
        if self.flags.file_faults is None:
            return None
        state = self.folder / "file-faults"
        state.mkdir(exist_ok=True)
        return {**os.environ, "LD_PRELOAD": str(BIN / "libfile_faults.so"),
                "SIMPLESCALE_FILE_FAULTS": f"folder={run / self.flags.file_folder};state={state};seed={self.flags.file_faults};{self.flags.file_rates}"}

    def file_faults(self):
        """How often the file system had each effect."""
        log = self.folder / "file-faults/faults.jsonl"
        return dict(collections.Counter(line["effect"] for line in lines(log)))

    def file_error(self, code):
        """True if `train` refused to begin because of a fault of the file system, which is over when it begins again."""
        said = (self.folder / "train.out").read_text().splitlines()[-1:]
        errors = (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ENOENT, errno.EEXIST) if code == 74 else (
            errno.ENOENT, errno.EEXIST) if code in (65, 78) else ()  # a stale answer says that a file is missing, or there
        return self.flags.file_faults is not None and any(os.strerror(error) in line for line in said for error in errors)

    # --- Faults: each returns what it hit, or None if it is not possible now ---

    def signal_trainer(self, number):
        _, trainers, _ = pids_of(self.run)
        if not trainers:
            return None
        name = self.random.choice(sorted(trainers))
        if not send_signal(trainers[name], number):
            return None
        if number == signal.SIGSTOP:  # wakes up after the run has replaced it
            self.to_wake.append((time.monotonic() + self.random.uniform(2, 8), trainers[name]))
        return name

    def kill_trainer(self):
        return self.signal_trainer(signal.SIGKILL)

    def segfault_trainer(self):
        return self.signal_trainer(signal.SIGSEGV)

    def stop_trainer(self):
        return self.signal_trainer(signal.SIGSTOP)

    def two_trainers(self):
        return f"{self.signal_trainer(signal.SIGKILL)}, {self.signal_trainer(signal.SIGKILL)}"

    def kill_node(self):
        agents, trainers, _ = pids_of(self.run)
        if not agents:
            return None
        name = self.random.choice(sorted(agents))
        if not send_signal(agents[name], signal.SIGKILL):
            return None
        for trainer, pid in trainers.items():
            if trainer.startswith(name + "."):
                send_signal(pid, signal.SIGKILL)
        return name

    def kill_agent(self):
        agents, _, _ = pids_of(self.run)
        name = self.random.choice(sorted(agents)) if agents else None
        return name if name and send_signal(agents[name], signal.SIGKILL) else None

    def stop_agent(self):
        agents, _, _ = pids_of(self.run)
        name = self.random.choice(sorted(agents)) if agents else None
        if not name or not send_signal(agents[name], signal.SIGSTOP):
            return None
        self.to_wake.append((time.monotonic() + self.random.uniform(2, 6), agents[name]))
        return name

    def kill_supervisor(self):
        page = status(self.run) or {}
        pid = (page.get("supervisor") or {}).get("pid")
        return str(pid) if pid and send_signal(pid, signal.SIGKILL) else None

    def stop_supervisor(self):
        page = status(self.run) or {}
        pid = (page.get("supervisor") or {}).get("pid")
        if not pid or not send_signal(pid, signal.SIGSTOP):
            return None
        self.to_wake.append((time.monotonic() + self.random.uniform(3, 6), pid))
        return str(pid)

    def kill_leaders(self):
        _, _, leaders = pids_of(self.run)
        hits = [str(pid) for pid in leaders if send_signal(pid, signal.SIGKILL)]
        return " and ".join(hits) or None

    def everything(self):
        """Kills launcher, agents, supervisors and trainers, as a power failure would."""
        for pid in leftovers(self.run):
            send_signal(int(pid), signal.SIGKILL)
        return "all processes"

    def inject(self, kind, of="trainers", *words):
        agents, trainers, _ = pids_of(self.run)
        there = sorted(agents if of == "nodes" else trainers)
        if not there:
            return None
        name = self.random.choice(there)
        command = " ".join(["inject", kind, name, *words])
        try:
            done = subprocess.run([*self.within(0), PROGRAM, "console", self.run, "-c", command], capture_output=True, timeout=20)
        except subprocess.TimeoutExpired:
            return None
        return " ".join([name, *words]) if done.returncode == 0 else None

    def for_a_while(self, low=0.3, high=4):
        return ["--ms", str(round(self.random.uniform(low, high) * 1000))]

    def hang_trainer(self):
        return self.inject("hang_trainer")

    def oom_trainer(self):
        return self.inject("oom_trainer")

    def bitflip_gradient(self):
        page = status(self.run) or {}
        if page.get("groups", 0) < 2 or page.get("state") != "training" or self.second or self.to_wake:
            return None  # without a second replica the fault cannot be detected
        if self.flags.nodes < 2 * self.flags.group_nodes:
            return None  # replicas of smaller groups may become one group at the next step
        if time.time() - (self.run / "control/status.json").stat().st_mtime > 1:
            return None  # the disk takes nothing: the page may be of a time when there was a replica
        at, hit = last_step(self.run), self.inject("bitflip_gradient")
        if hit:
            self.wait_until(lambda: last_step(self.run) >= at + 6, "the flip to be found while its replica lives")
        return hit

    def nan_loss(self):
        return self.inject("nan_loss")

    def partition_node(self):
        return self.inject("partition_node", "nodes", *self.for_a_while())

    def lose_messages(self):
        return self.inject("lose_messages", "nodes", "--value", str(round(self.random.uniform(0.05, 0.5), 2)), *self.for_a_while())

    def slow_link(self):
        return self.inject("slow_link", "nodes", "--value", str(self.random.randrange(5, 400)), *self.for_a_while())

    def slow_node(self):
        return self.inject("slow_node", "nodes", "--value", str(self.random.randrange(1, 20)), *self.for_a_while())

    def corrupt_snapshot(self):
        return self.inject("corrupt_snapshot")

    def corrupt_checkpoint(self):
        """Damages the newest checkpoint, if an intact one is left for a run whose processes are all killed."""
        steps = sorted(int(folder.name[5:]) for folder in (self.run / "checkpoints").glob("step-*"))
        if sum(step > self.damaged for step in steps) < 2:
            return None
        self.damaged = steps[-1]
        return self.inject("corrupt_checkpoint", "nodes")

    def disk_full(self):
        return self.inject("disk_full", "nodes", *self.for_a_while())

    def slow_disk(self):
        return self.inject("slow_disk", "nodes", "--value", str(self.random.randrange(10, 500)), *self.for_a_while())

    def unplug_host(self):
        """What a host sends, what it receives, or both is lost for a while."""
        if not self.network:
            return None
        host, way = self.random.randrange(len(self.network.spaces)), self.random.choice(["sends", "receives", "sends and receives"])
        self.network.drop(host, out="" if "sends" in way else None, into="" if "receives" in way else None)
        self.to_plug_in.append((time.monotonic() + self.random.uniform(0.3, 6), host))
        return f"n{host} {way}"

    KINDS = {"unplug_host": 3, "oom_trainer": 1, "partition_node": 2, "lose_messages": 1, "slow_link": 1, "slow_node": 1, "corrupt_snapshot": 1,
             "corrupt_checkpoint": 1, "disk_full": 1, "slow_disk": 1,
             "kill_trainer": 5, "segfault_trainer": 2, "stop_trainer": 2, "two_trainers": 2, "kill_node": 4, "kill_agent": 2,
             "stop_agent": 1, "kill_supervisor": 3, "stop_supervisor": 1, "kill_leaders": 1, "everything": 1, "hang_trainer": 1,
             "bitflip_gradient": 1, "nan_loss": 1}

    # --- The run ---

    def wake(self):
        due = [pid for when, pid in self.to_wake if when <= time.monotonic()]
        self.to_wake = [(when, pid) for when, pid in self.to_wake if when > time.monotonic()]
        for pid in due:
            send_signal(pid, signal.SIGCONT)
        for when, host in list(self.to_plug_in):
            if when <= time.monotonic():
                self.to_plug_in.remove((when, host))
                self.network.heal(host)

    def wait_until(self, condition, what):
        """Waits for the condition; starts the run again if it exits with a code that asks for it. False if it ended with success."""
        seen, since = last_step(self.run), time.monotonic()
        while not condition():
            self.wake()
            codes = {rank: process.poll() for rank, process in self.processes.items()}
            if not any(codes.values()) and None not in codes.values():
                return False
            for rank, code in codes.items():
                if not code:
                    continue
                if code not in (75, -9) and not (code == 74 and self.done["disk_full"]) and not self.file_error(code):
                    raise Broken(f"`train` ended with {code} while waiting for {what}")
                self.restarts += 1
                self.start(rank)
            now = last_step(self.run)
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > DEADLINE_S:
                raise Broken(f"JOB-4: no step for {DEADLINE_S} s after step {seen}, while waiting for {what}")
            time.sleep(0.02)
        return True

    def go(self):
        begin = time.monotonic()
        reference = self.folder / "reference"
        subprocess.run([PROGRAM, "train", str(self.config()), f"--run={reference}", "--cluster.nodes=1",
                        "--cluster.trainers_per_node=1", "--cluster.spares=0", "--parallel.group_nodes=1"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3600)
        self.run = self.folder / "run"
        for rank in range(len(self.network.spaces) if self.network else 1):
            self.start(rank)
        kinds = self.flags.kinds.split(",") if self.flags.kinds else list(self.KINDS)
        weights = [self.KINDS.get(kind, 1) for kind in kinds]
        number = 0
        self.second = False  # the fault is the second of two at once
        while number < self.flags.faults:
            at = (number + 1) * STEPS_PER_FAULT + self.random.randrange(STEPS_PER_FAULT // 2)
            if not self.wait_until(lambda: last_step(self.run) >= at, f"step {at}"):
                break
            time.sleep(self.random.uniform(0, 0.05))  # at a random moment of the step
            for again in range(1 + (self.random.random() < 0.2)):
                self.second = again > 0
                for _ in range(20):
                    kind = self.random.choices(kinds, weights)[0]
                    what = getattr(self, kind)()
                    if what or any(process.poll() is not None for process in self.processes.values()):
                        break
                    time.sleep(0.1)
                print(f"{time.monotonic() - begin:7.1f} s  step {last_step(self.run):5}  {kind} {what or '(no target)'}", flush=True)
                self.done[kind] += what is not None
                number += 1
                time.sleep(self.random.uniform(0, 0.4))  # the second fault hits the recovery from the first
        self.wait_until(lambda: False, "the end")
        self.check(reference)
        print(json.dumps({"faults": sum(self.done.values()), "kinds": dict(self.done), "file_faults": self.file_faults(),
                          "steps": self.steps, "starts": 1 + self.restarts, "longest_pause_s": self.longest_pause_s(),
                          "seed": self.flags.seed, "seconds": round(time.monotonic() - begin, 1), "ok": True}))

    def longest_pause_s(self):
        """The longest time between two committed steps."""
        times = [line["time"] for line in lines(self.run / "metrics.jsonl")]
        return round(max(after - before for before, after in zip(times, times[1:])), 1)

    def only_damaged_on_purpose(self, verified):
        """True if `verify` reports nothing but wrong checksums of checkpoints. Its last line is the summary."""
        wrong = [line for line in verified.splitlines()[:-1] if "is wrong" in line or "is not" in line]
        return self.done["corrupt_checkpoint"] and wrong and all(
            line.startswith("checkpoints: ") and "the checksum of" in line for line in wrong)

    def check(self, reference):
        for _, pid in self.to_wake:
            send_signal(pid, signal.SIGCONT)
        digest = lambda run: subprocess.run([PROGRAM, "digest", run], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        if digest(self.run) != digest(reference):
            raise Broken("JOB-6: the digests differ")
        done = subprocess.run([PROGRAM, "verify", self.run], capture_output=True, text=True)
        right = done.returncode == 0 or self.only_damaged_on_purpose(done.stdout)
        if not right or "each sample exactly once" not in done.stdout:
            raise Broken(f"JOB-2: verify says {done.stdout}{done.stderr}")
        # A step's line is written again if the disk refused to sync it, and by a deposed supervisor that was stopped just before
        # it wrote; readers ignore it, because it is not newer than a line before it. A step that is made again has a newer
        # generation.
        metrics, newest = [], (0, 0)
        for line in lines(self.run / "metrics.jsonl"):
            at = (line["generation"], line["step"])
            if line["loss"] is None and metrics and line["step"] <= metrics[-1]["step"]:
                newest = max(newest, at)  # by the plan, because the ledger had lost its lines of the step: nobody made it again
                continue
            if at > newest or (at == newest and "val_loss" in line):
                metrics.append(line)
            newest = max(newest, at)
        events = lines(self.run / "events.jsonl")
        excuses = [e["time"] for e in events if e["kind"] in ("steps_undone", "started")]
        taken_over = [e["reason"] for e in events if e["kind"] == "took_over"]  # `steps_undone` may die with its supervisor
        told = lambda a, b: any(f" after {b['step'] - 1} up to {a['step']} in the records do not count" in r for r in taken_over)
        # A step whose validation was interrupted has a second line of the same commit, with the loss.
        validated = lambda a, b: b["step"] == a["step"] and b["time"] == a["time"] and "val_loss" in b
        again = [(a["step"], b["step"]) for a, b in zip(metrics, metrics[1:])
                 if b["step"] != a["step"] + 1 and not validated(a, b) and not told(a, b)
                 and not any(a["time"] <= t <= b["time"] for t in excuses)]
        if again:
            raise Broken(f"JOB-1: steps were made again and no event gives a reason: {again}")
        # Events are written again, too, if the disk refused to sync them.
        joins = {(e["time"], e["generation"]) for e in lines(self.run / "events.jsonl") if e["kind"] in ("joined", "layout_changed")}
        joined = sorted(generation for _, generation in joins)
        if len(joined) != len(set(joined)):
            raise Broken(f"GEN-2: numbers of generations used twice: {joined}")
        end = time.monotonic() + 30
        while leftovers(self.run):
            if time.monotonic() > end:
                raise Broken(f"JOB-4: processes are left: {leftovers(self.run)}")
            time.sleep(0.1)


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--faults", type=int, default=30)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--nodes", type=int, default=2)
    a.add_argument("--trainers", type=int, default=2)
    a.add_argument("--spares", type=int, default=1)
    a.add_argument("--group-nodes", type=int, default=1)
    a.add_argument("--strategy", default="hybrid_shard")
    a.add_argument("--batch", type=int, default=48, help="global_batch_size")
    a.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the configuration, in TOML syntax")
    a.add_argument("--kinds", default="", help="only these faults, separated by commas")
    a.add_argument("--hosts", action="store_true", help="each node in a network namespace of its own")
    a.add_argument("--file-faults", type=int, metavar="SEED", help="faults of the run folder's file system, too")
    a.add_argument("--file-rates", default=FILE_RATES, metavar="EFFECT[.CALL]=RATE;...", help="their probabilities at each call")
    a.add_argument("--file-folder", default="", help="only below this folder of the run, for example checkpoints")
    flags = a.parse_args()
    if flags.hosts and namespaces.WHY_NOT:
        print(f"skipped: {namespaces.WHY_NOT}")
        sys.exit(77)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="simplescale-chaos-"))
    chaos = Chaos(flags, folder)
    try:
        chaos.go()
    except (Broken, subprocess.SubprocessError) as broken:
        for pid in leftovers(folder):
            send_signal(int(pid), signal.SIGKILL)
        sys.exit(f"{broken}\nkept: {folder}\nrepeat with: {' '.join(sys.argv)} --seed {flags.seed}")
    finally:
        if chaos.network:
            chaos.network.close()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
