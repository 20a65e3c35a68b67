#!/usr/bin/env python3
"""bench reshape: what a lost node costs when the nodes that are left form groups of another size.

    ./simplescale bench reshape [--ms 25] [--steps 30]

Four nodes with one trainer each share the CPUs of this machine, so what a micro-batch takes is a
pause: `slow_node` delays each by --ms. A step has 48 micro-batches, 12 for each trainer. A node is
drained; the rate is that of the median step of --steps steps before and after. Then the node is back,
and killed with all its processes: the time without a committed step, less a normal step. Each row ends
as many steps on one trainer would: their digest is compared.

Prints one JSON line per row, then the table.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import time

import faults
import harness

MICRO_BATCHES = 48
ROWS = [("2 groups of 2 nodes", 2, "replicas", (3, 1)), ("2 groups of 2 nodes that keep their size", 2, "group_nodes", (1, 2)),
        ("1 group of 4 nodes", 4, "replicas", (3, 1))]


class Run(faults.Run):
    def __init__(self, flags, data, row):
        self.flags = flags
        name, group_nodes, prefer, self.shape_after = row
        super().__init__(flags, data, f"reshape-{ROWS.index(row)}", model__dim=32, model__hidden=64, model__layers=1, model__heads=2,
                         model__kv_heads=2, model__block_size=16, train__micro_batch_size=1, train__global_batch_size=MICRO_BATCHES,
                         cluster__nodes=4, cluster__trainers_per_node=1, cluster__prefer=prefer, cluster__balance="even", train__schedule="constant",
                         parallel__group_nodes=group_nodes, checkpoint__peer_every_steps=1)
        self.shape_before = (4 // group_nodes, group_nodes)

    def console(self, command):
        words = [str(self.flags.build / "bin/simplescale"), "console", str(self.folder), "-c", command]
        self.wait(lambda: subprocess.run(words, capture_output=True).returncode == 0, command)

    def slow(self, *nodes):
        for node in nodes:
            self.console(f"inject slow_node n{node} --value {self.flags.ms} --ms 3600000")

    def trains_as(self, shape):
        self.wait(lambda: (s := self.status()).get("state") == "training" and (s.get("groups"), s.get("shards")) == shape, f"{shape} groups and shards")

    def step_ms(self):
        begin = time.time()
        self.steps_after(begin, self.flags.steps)
        return statistics.median(m["step_ms"] for m in self.metrics() if m["time"] > begin)

    def pause_s(self):
        """The longest time between two committed steps around the kill of n3, less a normal step."""
        normal = self.step_s()
        node = next(n for n in self.status()["nodes"] if n["name"] == "n3")
        began = time.time()
        for pid in [node["pid"], *[t["pid"] for t in node["trainers"]]]:
            os.kill(pid, signal.SIGKILL)
        self.wait(lambda: any(e["kind"] == "recovered" and e["time"] > began for e in self.events()), "the recovery")
        times = self.steps_after(began)
        last = max(m["time"] for m in self.metrics() if m["time"] <= times[0] and m["time"] not in times)
        return times[0] - last - normal


def measure(flags, data, row):
    run = Run(flags, data, row)
    run.steps_after(0)
    run.slow(0, 1, 2, 3)
    before = run.step_ms()
    run.console("drain n3")
    run.trains_as(run.shape_after)
    after = run.step_ms()
    run.console("undrain n3")
    run.trains_as(run.shape_before)
    run.steps_after(time.time(), 16)
    pause = run.pause_s()
    run.console("stop")
    run.process.wait(120)
    steps = run.metrics()[-1]["step"]
    program = flags.build / "bin/simplescale"
    digest = harness.call([program, "digest", run.folder]).splitlines()[-1]
    alone = run.folder.with_name(run.folder.name + "-alone")
    harness.call(["rm", "-rf", alone])
    harness.call([program, "train", run.folder.with_suffix(".toml"), f"--run={alone}", f"--train.max_steps={steps}", "--cluster.nodes=1",
                  "--parallel.group_nodes=1", "--cluster.prefer=group_nodes"])
    if harness.call([program, "digest", alone]).splitlines()[-1] != digest:
        raise harness.Failed(f"{row[0]}: the digest differs from that of {steps} steps on one node")
    return {"row": row[0], "before_ms": round(before, 1), "after_ms": round(after, 1), "rate": round(before / after, 3),
            "after": f"{run.shape_after[0]} x {run.shape_after[1]}", "pause_s": round(pause, 3)}


def main():
    parser = harness.parser("reshape", __doc__)
    parser.add_argument("--ms", type=float, default=25, help="of a micro-batch")
    parser.add_argument("--steps", type=int, default=30, help="that are timed")
    flags = parser.parse_args()
    flags.preset = "micro"
    flags.work.mkdir(parents=True, exist_ok=True)
    data = flags.work / "reshape-tokens.bin"
    dice = random.Random(1)
    data.write_bytes(b"".join(dice.randrange(4096).to_bytes(2, "little") for _ in range(1 << 18)))
    rows = []
    for row in ROWS:
        rows.append(measure(flags, data, row))
        print(json.dumps(rows[-1]), flush=True)
    print(harness.table(["", "groups x nodes after", "step before, ms", "after, ms", "rate", "pause after a kill, s"],
                        [[r["row"], r["after"], str(r["before_ms"]), str(r["after_ms"]), f"{r['rate']:.2f}", f"{r['pause_s']:.2f}"] for r in rows]))


if __name__ == "__main__":
    harness.run_main(main)
