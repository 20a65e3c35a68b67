#!/usr/bin/env python3
"""bench waves: a group over hosts that share slow links, whose micro-batches pass each unit together.

    sudo ./simplescale bench waves [--hosts 2] [--rate 1gbit] [--micro-batches 8] [--waves 1 8]
                                   [--steps 4] [--rounds 2] [--preset mini] [--block-size 32]
                                   [--experts gathered resident] [--expert-count 32]

The hosts are network namespaces with one trainer each, whose interfaces send and receive at most
--rate. In each round the group (full_shard) trains with each of the waves, and of a model with experts in
each of their places; the median of the rounds' ratios to the first one counts. Bytes are those that the interfaces have sent, beside those of
`config show`. Samples are short, so that the network limits a step.

Prints one JSON line per run, then the table. Needs root, `ip`, `tc` and `nft`.
"""

import json
import re
import statistics
import subprocess

import harness
from attack import HostsRun, limited_network
from harness import table

UNITS = {"MiB": 2**20, "GiB": 2**30}


def told(flags, config):
    """MB that a trainer sends inside its group a step, as `config show` tells it."""
    shown = subprocess.run([flags.build / "bin/simplescale", "config", "show", config], capture_output=True, text=True, check=True).stdout
    amount, unit = re.search(r"a trainer sends ([\d.]+) (\w+) a step", shown).groups()
    return float(amount) * UNITS[unit] / 1e6


def measure(flags, data, network, precision, wave, experts):
    """Seconds of a step, and MB that a host sends in it."""
    run = HostsRun(flags, data, network, flags.hosts, cluster__nodes=flags.hosts, cluster__trainers_per_node=1,
                   parallel__strategy="full_shard", parallel__group_nodes=flags.hosts, parallel__wave=wave, parallel__experts=experts, train__precision=precision,
                   train__micro_batch_size=1, train__global_batch_size=flags.hosts * flags.micro_batches, model__block_size=flags.block_size,
                   model__experts=flags.expert_count, checkpoint__peer_every_steps=0, supervision__warm_processes=0, supervision__silence_ms=20000)
    row = dict(precision=precision, wave=wave, experts=experts, **run.timed(flags.steps), told_mb=told(flags, run.folder.with_suffix(".toml")))
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = harness.parser("waves", __doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="as tc names it")
    parser.add_argument("--micro-batches", type=int, default=8, help="of each trainer in a step")
    parser.add_argument("--waves", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=4, help="of each run, that are measured")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--block-size", type=int, default=32, help="tokens of a sample")
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    parser.add_argument("--experts", nargs="+", default=["auto"], help="values of parallel.experts")
    parser.add_argument("--expert-count", type=int, default=0, help="model.experts; 0: the preset's")
    flags = parser.parse_args()
    network = limited_network("waves", flags.hosts, flags.rate)
    data = harness.write_tokens(flags, flags.preset)
    rows = []
    for precision in flags.precision:
        cases = [(wave, experts) for wave in flags.waves for experts in flags.experts]
        runs = [[measure(flags, data, network, precision, *case) for case in cases] for _ in range(flags.rounds)]
        for i, (wave, experts) in enumerate(cases):
            of = lambda name: statistics.median(r[i][name] for r in runs)
            ratio = statistics.median(r[i]["step_s"] / r[0]["step_s"] for r in runs)
            rows.append([precision, wave, experts, f"{of('step_s'):.2f}", f"{ratio:.2f}", f"{of('host_mb'):.1f}", f"{of('told_mb'):.1f}"])
    print(table(["", "wave", "experts", "s a step", "of the first", "MB a host sends a step", "config show"], rows))


if __name__ == "__main__":
    harness.run_main(main)
