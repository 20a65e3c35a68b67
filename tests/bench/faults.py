#!/usr/bin/env python3
"""bench faults: time from a killed or stopped process to the next step; torchft and torchrun beside it.

    ./simplescale bench faults [--faults 50] [--only REGEX] [--preset micro] [--peers-kills N]

Kills and stops real processes of a run of 2 nodes x 2 trainers with default settings. Trainers and
nodes of this run fail at a random moment of a step. Before each fault the benchmark waits until all
groups train and a standby is up. Times come from events.jsonl and metrics.jsonl; "time" in
metrics.jsonl is when the trainers committed the step. p99 of up to 100 faults is the maximum.

--peers-kills N also runs torchft_kill.py and torchelastic_kill.py of the folder --peers with N
kills each, and simplescale with a model and a batch of their size (4.2 M parameters, 512 tokens per
trainer). --python must then have torchft and torchrun.

Prints one JSON line per row, then the table.
"""

import atexit
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path

import harness
from harness import Failed, table, toml

DEADLINE_S = 60


def lines(path):
    """The complete lines of a JSON lines file, parsed; empty if there is no file."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Run:
    """A `simplescale train` process and its run folder. It trains until stop()."""

    def __init__(self, flags, data, name, **settings):
        self.folder = flags.work / f"faults-{name}"
        shutil.rmtree(self.folder, ignore_errors=True)
        config = {
            "run": {"name": "faults"}, "model": {"preset": flags.preset},
            "data": {"source": str(data), "format": "nanogpt", "shuffle": False, "validation_fraction": 0.0},
            "train": {"max_steps": 1000000, "warmup_iters": 10, "micro_batch_size": 8, "validation_samples": 0, "sample_tokens": 0},
            "parallel": {"strategy": "hybrid_shard", "group_nodes": 1},
            "cluster": {"nodes": 2, "trainers_per_node": 2, "device": "cpu"},
            "supervision": {"max_restarts": 100000}, "checkpoint": {"disk_every_steps": 0},
        }
        for key, value in settings.items():
            section, leaf = key.split("__")
            config.setdefault(section, {})[leaf] = value
        self.groups = config["cluster"]["nodes"] // config["parallel"]["group_nodes"]
        file = self.folder.with_suffix(".toml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"[{s}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in keys.items()) for s, keys in config.items()))
        command = [flags.build / "bin/simplescale", "train", file, f"--run={self.folder}"]
        with open(self.folder.with_suffix(".err"), "w") as errors:
            self.process = self.launch(command, stdout=subprocess.DEVNULL, stderr=errors)
        atexit.register(self.stop)  # a run left over after a failure would disturb later ones

    def launch(self, command, **outputs):
        """Starts the run's processes and returns the one that ends with the run."""
        return subprocess.Popen(command, **outputs)

    def metrics(self):
        return lines(self.folder / "metrics.jsonl")

    def events(self):
        return lines(self.folder / "events.jsonl")

    def status(self):
        try:
            return json.loads((self.folder / "control/status.json").read_text())
        except (OSError, ValueError):
            return {}

    def wait(self, condition, what):
        """Polls until condition() is true and returns its value. what: for the error message."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"{self.folder}: `train` ended with exit code {self.process.returncode} while waiting for {what}; "
                             f"see {self.folder.with_suffix('.err')}")
            value = condition()
            if value:
                return value
            time.sleep(0.01)
        raise Failed(f"{self.folder}: waited {DEADLINE_S} s for {what}; see its events.jsonl and logs")

    def steps_after(self, t, count=1):
        """Waits for `count` steps committed after t. Returns all commit times found."""
        return self.wait(lambda: (found := [m["time"] for m in self.metrics() if m["time"] > t]) and len(found) >= count and found,
                         f"{count} committed steps")

    def step_s(self, last=15):
        """Median seconds between the commits of the last steps."""
        times = [m["time"] for m in self.metrics()][-last:]
        return statistics.median(b - a for a, b in zip(times, times[1:]))

    def settle(self, steps=3):
        """Waits until all groups train, a standby is up if there are several nodes, and `steps`
        more steps are committed."""
        self.wait(lambda: (s := self.status()).get("state") == "training" and s.get("groups") == self.groups
                  and (s.get("standby") or len(s["nodes"]) == 1), f"training in {self.groups} groups with a standby")
        self.steps_after(time.time(), steps)

    def trainers(self):
        """Name -> pid of the trainers that belong to a group."""
        return {t["name"]: t["pid"] for n in self.status()["nodes"] for t in n["trainers"] if t["group"]}

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def kill_node(run, name):
    """kill -9 of the node's agent and its trainers."""
    node = next(n for n in run.status()["nodes"] if n["name"] == name)
    for pid in [node["pid"], *(t["pid"] for t in node["trainers"])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def detected(run, t):
    """Waits for the first detection from t on. Returns its time."""
    return run.wait(lambda: next((e["time"] for e in run.events() if e["phase"] == "detect" and e["time"] >= t), None), "the detection of a failure")


def trainer(flags, run, dice, number):
    """Sends signal `number` to a random trainer. Returns the seconds until its detection, and until
    the first committed step of the generation after the recovery."""
    run.settle()
    time.sleep(dice.uniform(0, run.step_s()))
    pids = run.trainers()
    t = time.time()
    os.kill(pids[dice.choice(sorted(pids))], number)
    seen = detected(run, t)
    generation = run.wait(lambda: next((e["generation"] for e in run.events() if e["kind"] == "recovered" and e["time"] > seen), None),
                          "the event `recovered`")
    committed = run.wait(lambda: next((m["time"] for m in run.metrics() if m["generation"] == generation), None), "a committed step after the recovery")
    return seen - t, committed - t


def row_trainer_killed(flags, data, dice):
    run = Run(flags, data, "trainer-killed")
    results = [trainer(flags, run, dice, signal.SIGKILL) for _ in range(flags.faults)]
    run.stop()
    return {"a killed process detected": [r[0] for r in results], "trainer killed -> next committed step": [r[1] for r in results]}


def row_trainer_stopped(flags, data, dice):
    run = Run(flags, data, "trainer-stopped")
    results = [trainer(flags, run, dice, signal.SIGSTOP) for _ in range(flags.faults)]
    run.stop()
    return {"a stopped process detected": [r[0] for r in results], "trainer stopped -> next committed step": [r[1] for r in results]}


def row_node_spare(flags, data, dice):
    run = Run(flags, data, "node-spare", cluster__spares=1)
    results = []
    for _ in range(flags.faults):
        run.wait(lambda: any(n["state"] == "spare" and all(t["state"] == "idle" for t in n["trainers"]) for n in run.status().get("nodes", [])),
                 "an idle spare")
        run.settle()
        time.sleep(dice.uniform(0, run.step_s()))
        name = dice.choice(sorted(n["name"] for n in run.status()["nodes"] if n["group"]))
        t = time.time()
        kill_node(run, name)
        seen = detected(run, t)
        results.append(run.steps_after(seen)[0] - t)
    run.stop()
    return {"node killed, with a spare -> next committed step": results}


def row_node_alone(flags, data, dice):
    """Kills a node when there is no spare; the other group trains on. Returns the seconds until its
    next committed step, less the time of one normal step of that group, which is measured on the
    two steps after the fault."""
    run = Run(flags, data, "node-alone")
    results = []
    for _ in range(flags.faults):
        run.settle()
        time.sleep(dice.uniform(0, run.step_s()))
        name = dice.choice(["n0", "n1"])
        t = time.time()
        kill_node(run, name)
        seen = detected(run, t)
        after = run.steps_after(seen, 2)
        results.append(max(0.0, (after[0] - t) - (after[1] - after[0])))
    run.stop()
    return {"node killed, no spare -> next committed step, beyond one step": results}


def row_supervisor(flags, data, dice):
    run = Run(flags, data, "supervisor")
    gaps, acting = [], []
    for _ in range(flags.faults):
        run.settle()
        normal = run.step_s()
        before = run.status()["supervisor"]
        t = time.time()
        os.kill(before["pid"], signal.SIGKILL)
        acting.append(run.wait(lambda: next((e["time"] for e in run.events() if e["kind"] == "took_over" and e["time"] > t), None),
                               "the event `took_over`") - t)
        times = [m["time"] for m in run.metrics() if m["time"] > t - 3 * normal]
        times += run.steps_after(times[-1], 3)
        times = sorted(set(times))
        gaps.append(max(b - a for a, b in zip(times, times[1:])) / normal)
    run.stop()
    return {"supervisor killed -> longest gap, in normal steps": gaps, "supervisor killed -> successor acting": acting}


# A model so small that eight groups on two cores show the cost of the recovery, not of the steps.
SMALL = {"model__preset": "", "model__dim": 64, "model__hidden": 176, "model__layers": 2, "model__heads": 2, "model__kv_heads": 2,
         "model__vocab": 256, "model__block_size": 32, "train__micro_batch_size": 1, "train__global_batch_size": 8,
         "cluster__trainers_per_node": 1}


def row_groups(flags, data, dice):
    """kill -9 of a trainer in runs of 2 and of 8 groups with the same global batch. Returns the
    seconds from the detection until all trainers train again."""
    results = {}
    for groups in (2, 8):
        run = Run(flags, harness.write_tokens(flags, "small", SMALL["model__vocab"]), f"groups-{groups}", **SMALL, cluster__nodes=groups)
        times = []
        for _ in range(flags.faults):
            run.settle(20)
            pids = run.trainers()
            t = time.time()
            os.kill(pids[dice.choice(sorted(pids))], signal.SIGKILL)
            times.append(run.wait(lambda: next((e["ms"] - e["phases"].get("detect", 0) for e in run.events() if e["kind"] == "recovered" and e["time"] > t), None),
                                  "the event `recovered`") / 1e3)
        run.stop()
        results[f"{groups} groups of one trainer: recovery"] = times
    return results


# The sizes of tiny_llama.py, the model of both peer scripts: embeddings not tied, 4 x 128 tokens in
# the batch of a trainer.
PEERS_SIZE = {"model__preset": "", "model__dim": 256, "model__hidden": 688, "model__layers": 4, "model__heads": 4, "model__kv_heads": 4,
              "model__vocab": 2048, "model__block_size": 128, "model__tie_embeddings": False, "train__micro_batch_size": 4}


def beside_peers(flags, data, dice):
    """Yields (what, seconds or statistics): ours in the layout of torchft_kill.py (two replicas)
    and of torchelastic_kill.py (FSDP over four trainers), then the two scripts themselves."""
    pair = dict(PEERS_SIZE, cluster__trainers_per_node=1)
    run = Run(flags, data, "peers-replica", **pair)
    alone, again = [], []
    for _ in range(flags.peers_kills):
        run.settle(8)
        time.sleep(dice.uniform(0, run.step_s()))
        name = dice.choice(["n0", "n1"])
        t = time.time()
        kill_node(run, name)
        seen = detected(run, t)
        alone.append(run.steps_after(seen)[0] - t)
        grown = run.wait(lambda: next((e["generation"] for e in run.events() if e["kind"] == "layout_changed" and e["time"] > seen
                                       and e["reason"].startswith(f"{name} joins")), None), "a layout with the returned node")
        again.append(run.wait(lambda: next((m["time"] for m in run.metrics() if m["generation"] == grown), None),
                              "a committed step of the returned node") - t)
    run.stop()
    yield "ours, two replicas: node killed -> the other's next commit", alone
    yield "ours, two replicas: node killed -> the returned node's first commit", again
    run = Run(flags, data, "peers-sharded", **dict(PEERS_SIZE, cluster__nodes=1, cluster__trainers_per_node=4))
    results = [trainer(flags, run, dice, signal.SIGKILL)[1] for _ in range(flags.peers_kills)]
    run.stop()
    yield "ours, FULL_SHARD over four: trainer killed -> next commit", results
    for script, presets, keys in (("torchft_kill.py", ["default", "aggressive"], {"survivor_next_commit_alone_s": "the other's next commit",
                                   "replacement_first_commit_s": "the replacement's first commit"}),
                                  ("torchelastic_kill.py", [None], {"first_step_s": "next commit"})):
        for preset in presets:
            command = [flags.python.absolute(), script, "--kills", str(flags.peers_kills), *(["--preset", preset] if preset else [])]
            out = harness.call(command, cwd=flags.peers).splitlines()[-1]
            print(out, flush=True)
            for key, what in keys.items():
                result = json.loads(out)[key]
                yield f"{script} {preset or ''}: killed -> {what}", result


ROWS = [row_trainer_killed, row_trainer_stopped, row_node_spare, row_node_alone, row_supervisor, row_groups]


def main():
    a = harness.parser("faults", __doc__)
    a.add_argument("--faults", type=int, default=50)
    a.add_argument("--preset", default="micro", choices=list(harness.PRESETS))
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--only", default="", help="run only the rows whose function name matches this regular expression")
    a.add_argument("--peers-kills", type=int, default=0, help="also run torchft_kill.py and torchelastic_kill.py with this many kills")
    flags = a.parse_args()
    data = harness.write_tokens(flags, flags.preset)
    dice = random.Random(flags.seed)
    cells = []

    def show(what, values):
        if not isinstance(values, dict):
            values = sorted(values)
            values = {"n": len(values), "p50": statistics.median(values), "p99": values[min(len(values) - 1, int(0.99 * len(values)))],
                      "max": values[-1]}
        print(json.dumps({"what": what} | {k: round(values[k], 4) for k in ("n", "p50", "p99", "max")}), flush=True)
        cells.append([what, values["n"], f"{values['p50']:.3f}", f"{values['p99']:.3f}", f"{values['max']:.3f}"])

    for row in ROWS:
        if re.search(flags.only, row.__name__):
            for what, values in row(flags, data, dice).items():
                show(what, values)
    if flags.peers_kills:
        for what, values in beside_peers(flags, harness.write_tokens(flags, "tiny", PEERS_SIZE["model__vocab"]), dice):
            show(what, values)
    print("\n" + table(["s", "n", "p50", "p99", "max"], cells))


if __name__ == "__main__":
    harness.run_main(main)
