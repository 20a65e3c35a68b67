#!/usr/bin/env python3
"""bench step_vs_pytorch: training speed beside PyTorch FSDP2, eager and compiled.

    ./simplescale bench step_vs_pytorch [--rounds 3] [--quick] [--compile] [--only REGEX]

Measures tokens per second of `simplescale train` as a user runs it (snapshots, ledger, metrics and
supervision on) and of fsdp_baseline.py (FSDP2 / HSDP over gloo) in its best environment
(fast_env.sh), on this machine.

A row is a preset, a precision and a layout: one process with all cores, 2 full_shard, or 2 groups
of 2. In a round the programs of a row run one after the other. The table has the median over the
rounds of each rate, and the median over the rounds of their ratio. Column `PyTorch` is eager
PyTorch, either with gloo's collectives or with --direct-comm, whichever is faster. --compile adds
the same for torch.compile. A rate is tokens / wall time of all steps after the warm-up.

Prints one JSON line per run, then the table.
"""

import json
import os
import re
import statistics

import harness
from harness import Ours, Peer, median_ratio, table

LAYOUTS = {  # name -> (nodes, trainers per node, our settings, the baseline's flags)
    "1 process": (1, 1, dict(parallel__strategy="full_shard"), ("--strategy", "none")),
    "2 full_shard": (1, 2, dict(parallel__strategy="full_shard"), ("--strategy", "full_shard")),
    "2x2 hybrid_shard": (2, 2, dict(parallel__strategy="hybrid_shard"), ("--strategy", "hybrid_shard", "--groups", "2")),
}
STEPS = {"micro": (110, 10), "mini": (23, 3)}  # preset -> (steps, warm-up steps among them)
QUICK = {"micro": (40, 10), "mini": (8, 2)}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def contestants(processes, compile):
    """The ways of Peer.train() to measure: (eager, compiled)."""
    eager, compiled = ["tuned"], ["compile"]
    if processes > 1:
        eager, compiled = eager + ["direct"], compiled + ["direct compile"]
    return eager, compiled if compile else []


class Row:
    """A row of the table: the programs measured, and tokens per second of each, by round."""

    def __init__(self, preset, precision, layout, flags):
        self.preset, self.precision, self.layout = preset, precision, layout
        self.nodes, self.trainers, self.settings, self.peer_flags = LAYOUTS[layout]
        # On the same cores a step of n processes takes about n times as long: make fewer steps.
        steps, warmup = (QUICK if flags.quick else STEPS)[preset]
        world = self.nodes * self.trainers
        self.warmup, self.steps = warmup, warmup + max(4, (steps - warmup) // world)
        self.eager, self.compiled = contestants(world, flags.compile)
        self.rates = {who: [] for who in ("ours", *self.eager, *self.compiled)}

    def name(self):
        return f"{self.preset} {self.precision} {self.layout}"

    def run(self, who, ours, peer):
        """who: "ours", or a way of Peer.train()."""
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
        """alone: the row of the same preset and precision in one process, or None."""
        rate = lambda who: f"{statistics.median(self.rates[who]):,.0f}"
        best = self.best(self.eager)
        cells = [self.name(), rate("ours"), f"{rate(best)}{' (direct)' * (best == 'direct')}",
                 f"**{median_ratio(self.rates['ours'], self.rates[best]):.2f}**"]
        if self.compiled:
            fast = self.best(self.compiled)
            cells += [rate(fast), f"{median_ratio(self.rates['ours'], self.rates[fast]):.2f}"]
        return cells + [f"{median_ratio(self.rates['ours'], alone.rates['ours']):.2f}" if alone else "–"]


def main():
    a = harness.parser("step_vs_pytorch", __doc__)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--quick", action="store_true", help="one round of few steps, as a check that everything runs")
    a.add_argument("--compile", action="store_true", help="compare with torch.compile, too")
    a.add_argument("--only", default="", help="run only the rows whose name matches this regular expression")
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
    harness.run_main(main)
