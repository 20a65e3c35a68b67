#!/usr/bin/env python3
"""bench launch: time from `train` to the first committed step, part by part.

    ./simplescale bench launch [--rounds 10] [--nodes 4] [--trainers 2] [--preset micro]

Starts a run with real processes on this machine; the token file exists before. One launch that is
not counted loads the files into memory. The parts of the time, in order:

1. The launcher checks the config and starts the agents.
2. The agents start trainer processes; the first agent also starts a supervisor.
3. The trainers load libtorch, connect and register. Meanwhile each node also starts a warm process
   at low priority.
4. The supervisor orders the trainers to join.
5. The trainers create their initial state and make the first step. The end is the time at which
   they committed it, by their own clock.

Prints one JSON line per round, then the table.
"""

import json
import re
import statistics
import time
from datetime import datetime, timezone

import harness
from faults import Run, lines
from harness import table

PARTS = ("agents run", "supervisor leads", "all nodes are up", "all trainers are up", "they are told to join", "the first step is committed")


def first_stamp(folder):
    """Unix time of the earliest first line in the agents' logs."""
    found = []
    for path in folder.glob("logs/n*.log"):
        if match := re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)", path.read_text()):
            found.append(datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp())
    return min(found)


def launch(flags, data):
    began = time.time()
    run = Run(flags, data, "launch", cluster__nodes=flags.nodes, cluster__trainers_per_node=flags.trainers)
    first = run.wait(run.metrics, "the first committed step")[0]
    events = lines(run.folder / "events.jsonl")
    run.stop()

    def last(kind):
        return max(e["time"] for e in events if e["kind"] == kind and e["time"] <= first["time"])

    at = [began, first_stamp(run.folder), last("started"), last("node_up"), last("trainer_up"), last("joined"), first["time"]]
    return dict(total_s=round(at[-1] - began, 3), parts_s={name: round(b - a, 3) for name, a, b in zip(PARTS, at, at[1:])})


def main():
    a = harness.parser("launch", __doc__)
    a.add_argument("--rounds", type=int, default=10)
    a.add_argument("--preset", choices=list(harness.PRESETS), default="micro")
    a.add_argument("--nodes", type=int, default=4)
    a.add_argument("--trainers", type=int, default=2)
    flags = a.parse_args()
    data = harness.write_tokens(flags, flags.preset)
    launch(flags, data)  # loads the files into memory; not counted
    rounds = []
    for _ in range(flags.rounds):
        rounds.append(launch(flags, data))
        print(json.dumps(rounds[-1]), flush=True)
    totals = [r["total_s"] for r in rounds]
    rows = [[name, *(f"{f([r['parts_s'][name] for r in rounds]):.2f}" for f in (statistics.median, max))] for name in PARTS]
    rows.append(["total", f"{statistics.median(totals):.2f}", f"{max(totals):.2f}"])
    print("\n" + table([f"{flags.nodes} x {flags.trainers}, seconds of each part, until", f"p50 of {len(rounds)}", "max"], rows))


if __name__ == "__main__":
    harness.run_main(main)
