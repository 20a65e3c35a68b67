#!/usr/bin/env python3
"""bench step_vs_pytorch: training speed beside PyTorch FSDP2, eager and compiled.

Training speed against PyTorch on this machine: tokens a second of `simplescale train` as it runs for a user (snapshots,
ledger, metrics, supervision on) and of fsdp_baseline.py (FSDP2 / HSDP over gloo) in its best environment (fast_env.sh).

    step_vs_pytorch.py [--rounds 3] [--quick] [--compile] [--only REGEX]

A row is a preset, a precision and a layout: one process with all cores, 2 full_shard, 2 groups of 2. In a round each row's
contestants run one after the other; the table has medians over the rounds, and the median of the rounds' ratios. `PyTorch`
is eager, with gloo's collectives or with --direct-comm, whichever is faster; with --compile, compiled ones are told, too.
Rates are of all steps after the warm-up: tokens / wall time. Prints one JSON line a run, then the table.
"""

import argparse
import json
import os
import re
import statistics
import sys

import harness
from harness import Failed, Ours, Peer, median_ratio, table

LAYOUTS = {  # name -> (nodes, trainers a node, our settings, the baseline's flags)
    "1 process": (1, 1, dict(parallel__strategy="full_shard"), ("--strategy", "none")),
    "2 full_shard": (1, 2, dict(parallel__strategy="full_shard"), ("--strategy", "full_shard")),
    "2x2 hybrid_shard": (2, 2, dict(parallel__strategy="hybrid_shard"), ("--strategy", "hybrid_shard", "--groups", "2")),
}
STEPS = {"micro": (110, 10), "mini": (23, 3)}  # and of them warm-up
QUICK = {"micro": (40, 10), "mini": (8, 2)}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def contestants(processes, compile):
    eager, compiled = ["tuned"], ["compile"]
    if processes > 1:
        eager, compiled = eager + ["direct"], compiled + ["direct compile"]
    return eager, compiled if compile else []


class Row:
    """One line of the table: who took part, and tokens a second of each, by round."""

    def __init__(self, preset, precision, layout, flags):
        self.preset, self.precision, self.layout = preset, precision, layout
        self.nodes, self.trainers, self.settings, self.peer_flags = LAYOUTS[layout]
        # Split evenly over the steps, so that a row takes about as long in every layout.
        steps, warmup = (QUICK if flags.quick else STEPS)[preset]
        world = self.nodes * self.trainers
        self.warmup, self.steps = warmup, warmup + max(4, (steps - warmup) // world)
        self.eager, self.compiled = contestants(world, flags.compile)
        self.rates = {who: [] for who in ("ours", *self.eager, *self.compiled)}

    def name(self):
        return f"{self.preset} {self.precision} {self.layout}"

    def run(self, who, ours, peer):
        if who == "ours":
            result = ours.train(self.preset, self.nodes, self.trainers, self.steps, self.warmup,
                                train__precision=self.precision, **self.settings)
        else:
            result = peer.train(self.preset, self.nodes * self.trainers, self.steps, self.warmup, who,
                                (*self.peer_flags, "--dtype", DTYPES[self.precision]))
        self.rates[who].append(result.tokens_per_second)
        print(json.dumps(dict(case=self.name(), who=who, tokens_per_second=round(result.tokens_per_second, 1),
                              step_ms_median=round(statistics.median(result.step_ms), 2), load=os.getloadavg()[0])), flush=True)

    def best(self, ways):
        return max(ways, key=lambda way: statistics.median(self.rates[way]))

    def cells(self, alone):
        rate = lambda who: f"{statistics.median(self.rates[who]):,.0f}"
        best = self.best(self.eager)
        cells = [self.name(), rate("ours"), f"{rate(best)}{' (direct)' * (best == 'direct')}",
                 f"**{median_ratio(self.rates['ours'], self.rates[best]):.2f}**"]
        if self.compiled:
            fast = self.best(self.compiled)
            cells += [rate(fast), f"{median_ratio(self.rates['ours'], self.rates[fast]):.2f}"]
        return cells + [f"{median_ratio(self.rates['ours'], alone.rates['ours']):.2f}" if alone else "–"]


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    harness.add_flags(a)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--quick", action="store_true", help="one round of few steps: is all in order?")
    a.add_argument("--compile", action="store_true", help="also against torch.compile")
    a.add_argument("--only", default="", help="a regular expression that a row's name must contain")
    flags = a.parse_args()
    flags.rounds = 1 if flags.quick else flags.rounds
    rows = [row for preset in STEPS for precision in DTYPES for layout in LAYOUTS
            if re.search(flags.only, (row := Row(preset, precision, layout, flags)).name())]
    data = {preset: harness.write_tokens(flags, preset) for preset in {row.preset for row in rows}}
    for number in range(flags.rounds):
        for row in rows:
            ours, peer = Ours(flags, data[row.preset]), Peer(flags, data[row.preset])
            everybody = list(row.rates)
            for who in everybody if number % 2 == 0 else everybody[::-1]:
                row.run(who, ours, peer)
    head = ["tokens/s", "ours", "PyTorch", "ratio", *(["compiled", "ratio"] if flags.compile else []), "ours / ours in 1 process"]
    print()
    cells = []
    for row in rows:
        alone = [r for r in rows if (r.preset, r.precision) == (row.preset, row.precision) and r.nodes * r.trainers == 1]
        cells.append(row.cells(alone[0] if alone and alone[0] is not row else None))
    print(table(head, cells))


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
