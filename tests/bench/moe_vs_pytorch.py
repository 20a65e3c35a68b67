#!/usr/bin/env python3
"""bench moe_vs_pytorch: training speed of a model with experts beside a dense one and PyTorch's.

    ./simplescale bench moe_vs_pytorch [--rounds 3] [--quick] [--compile] [--only REGEX]

Measures tokens per second of `simplescale train` with moe-micro (2 of 8 experts) and with micro,
which is dense and has as many parameters as a token passes there; and of fsdp_baseline.py under
FSDP2 with transformers' Mixtral and torchtitan's MoE (peers/moe.py), each with a loop over experts
and with torch's grouped_mm, in its best environment (fast_env.sh). --compile adds torch.compile.

A row is a precision and a layout, as in step_vs_pytorch. In a round the programs of a row run one
after the other. The first round measures every way of a family, the others only its fastest one.
The table has the median over the rounds of each rate, and of its ratio.

Prints one JSON line per run, then the table.
"""

import json
import os
import re
import statistics

import harness
from harness import Ours, Peer, median_ratio, table
from step_vs_pytorch import DTYPES, LAYOUTS, contestants

FAMILIES = {"transformers": ("eager", "grouped_mm"), "torchtitan": ("loop", "grouped_mm")}
STEPS, QUICK = (110, 10), (16, 6)  # (steps, warm-up steps among them)


class Row:
    """A row of the table: tokens per second of each program, by round."""

    def __init__(self, precision, layout, flags):
        self.precision, self.layout = precision, layout
        self.nodes, self.trainers, self.settings, self.peer_flags = LAYOUTS[layout]
        world = self.nodes * self.trainers
        steps, self.warmup = QUICK if flags.quick else STEPS
        self.steps = self.warmup + max(4, (steps - self.warmup) // world)
        environments = sum(contestants(world, flags.compile), [])
        self.ways = {family: [f"{family} {way} {environment}" for way in ways for environment in environments]
                     for family, ways in FAMILIES.items()}
        self.rates = {who: [] for who in ("ours", "dense", *sum(self.ways.values(), []))}

    def name(self):
        return f"{self.precision} {self.layout}"

    def strategy(self, family):
        """Only FSDP2 gives transformers' modules, in one process, bfloat16 over weights in float32."""
        alone = self.nodes * self.trainers == 1
        return ("--strategy", "full_shard") if alone and family == "transformers" and self.precision == "bf16" else self.peer_flags

    def run(self, who, ours, peer):
        if who in ("ours", "dense"):
            result = ours.train("moe-micro" if who == "ours" else "micro", self.nodes, self.trainers, self.steps, self.warmup,
                                train__precision=self.precision, **self.settings)
        else:
            family, way, environment = who.split(" ", 2)
            result = peer.train("moe-micro", self.nodes * self.trainers, self.steps, self.warmup, environment,
                                (*self.strategy(family), "--dtype", DTYPES[self.precision], "--experts", f"{family} {way}"))
        self.rates[who].append(result.tokens_per_second)
        print(json.dumps(dict(case=self.name(), who=who, tokens_per_second=round(result.tokens_per_second, 1),
                              step_ms_median=round(statistics.median(result.step_ms), 2), loss=round(result.losses[-1], 4),
                              load=os.getloadavg()[0])), flush=True)

    def fastest(self, family):
        return max(self.ways[family], key=lambda way: self.rates[way][0])

    def of_round(self, number):
        everybody = list(self.rates) if number == 0 else ["ours", "dense", *map(self.fastest, FAMILIES)]
        return everybody if number % 2 == 0 else everybody[::-1]

    def cells(self):
        rate = lambda who: f"{statistics.median(self.rates[who]):,.0f}"
        ratio = lambda who: f"**{median_ratio(self.rates['ours'], self.rates[who]):.2f}**"
        cells = [self.name(), rate("ours"), rate("dense"), ratio("dense")]
        for family in FAMILIES:
            best = self.fastest(family)
            cells += [f"{rate(best)} ({best.removeprefix(family + ' ')})", ratio(best)]
        return cells


def main():
    a = harness.parser("moe_vs_pytorch", __doc__)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--quick", action="store_true", help="one round of few steps, as a check that everything runs")
    a.add_argument("--compile", action="store_true", help="compare with torch.compile, too")
    a.add_argument("--only", default="", help="run only the rows whose name matches this regular expression")
    flags = a.parse_args()
    rows = [row for precision in DTYPES for layout in LAYOUTS if re.search(flags.only, (row := Row(precision, layout, flags)).name())]
    data = harness.write_tokens(flags, "moe-micro")
    for number in range(1 if flags.quick else flags.rounds):
        for row in rows:
            for who in row.of_round(number):
                row.run(who, Ours(flags, data), Peer(flags, data))
    print("\n" + table(["tokens/s", "ours", "dense", "ratio", "transformers", "ratio", "torchtitan", "ratio"],
                       [row.cells() for row in rows]))


if __name__ == "__main__":
    harness.run_main(main)
