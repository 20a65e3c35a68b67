#!/usr/bin/env python3
"""bench balance: the rate of 8 nodes of which one is slow, with even shares and with shares by speed.

    ./simplescale bench balance [--ms 25] [--speed 0.6] [--steps 90]

Eight nodes with one trainer each share the CPUs of this machine, so what a micro-batch takes is a
pause: `slow_node` delays each micro-batch by --ms, on one node by --ms / --speed. The model is so
small that its computation counts little. A step has 128 micro-batches, 16 for each trainer. The
rate is that of the median of the last 40 steps, without validation. All runs must end with the
same digest.

Prints one JSON line per row, then the table.
"""

import json
import random
import statistics
import subprocess

import faults
import harness

NODES, MICRO_BATCHES, TIMED = 8, 128, 40
ROWS = [("no slow node", "auto", False), ("one slow node, even", "even", True), ("one slow node, auto", "auto", True)]


def measure(flags, data, row):
    name, balance, slow = row
    run = faults.Run(flags, data, f"balance-{ROWS.index(row)}", model__dim=32, model__hidden=64, model__layers=1, model__heads=2, model__kv_heads=2,
                     model__block_size=16, train__micro_batch_size=1, train__global_batch_size=MICRO_BATCHES, train__max_steps=flags.steps,
                     cluster__nodes=NODES, cluster__trainers_per_node=1, cluster__balance=balance, supervision__warm_processes=0)
    run.steps_after(0)

    def console(command):
        words = [str(flags.build / "bin/simplescale"), "console", str(run.folder), "-c", command]
        run.wait(lambda: subprocess.run(words, capture_output=True).returncode == 0, command)

    console("pause")  # no step is made before all nodes have their pauses
    for node in range(NODES):
        console(f"inject slow_node n{node} --value {flags.ms / (flags.speed if slow and node == 3 else 1):.1f} --ms 3600000")
    console("resume")
    code = run.process.wait(flags.steps * MICRO_BATCHES / NODES * flags.ms / flags.speed / 1000 * 2 + 120)
    if code:
        raise harness.Failed(f"exit code {code}: {run.folder.with_suffix('.err').read_text()[-3000:]}")
    step_ms = statistics.median(line["step_ms"] for line in run.metrics()[-TIMED:])
    shares = {}
    for line in faults.lines(run.folder / "ledger.jsonl")[-NODES:]:
        shares[line["trainer"]] = sum(count for _, count in line["samples"])
    events = {f"{kind}_at": [e["step"] for e in run.events() if e["kind"] == kind] for kind in ("straggler", "shares")}
    digest = harness.call([flags.build / "bin/simplescale", "digest", run.folder]).splitlines()[-1]
    return {"row": name, "step_ms": round(step_ms, 1), "shares": [shares[f"n{n}.0"] for n in range(NODES)], **events, "digest": digest}


def main():
    parser = harness.parser("balance", __doc__)
    parser.add_argument("--ms", type=float, default=25, help="of a micro-batch on a fast node")
    parser.add_argument("--speed", type=float, default=0.6, help="of the slow node")
    parser.add_argument("--steps", type=int, default=90)
    flags = parser.parse_args()
    flags.preset = "micro"
    flags.work.mkdir(parents=True, exist_ok=True)
    data = flags.work / "balance-tokens.bin"
    dice = random.Random(1)
    data.write_bytes(b"".join(dice.randrange(4096).to_bytes(2, "little") for _ in range(1 << 18)))
    rows = []
    for row in ROWS:
        rows.append(measure(flags, data, row))
        rows[-1]["rate"] = round(rows[0]["step_ms"] / rows[-1]["step_ms"], 3)
        print(json.dumps(rows[-1]), flush=True)
    if len({row["digest"] for row in rows}) != 1:
        raise harness.Failed("the digests differ")
    print(harness.table(["", "step, ms", "rate", "micro-batches of the nodes"],
                        [[r["row"], str(r["step_ms"]), f"{r['rate']:.2f}", " ".join(map(str, r["shares"]))] for r in rows]))


if __name__ == "__main__":
    harness.run_main(main)
