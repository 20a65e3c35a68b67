#!/usr/bin/env python3
"""bench levels: a group over hosts that share slow links, with two levels against one.

    sudo ./simplescale bench levels [--hosts 4] [--trainers 4] [--rate 1gbit] [--steps 6] [--rounds 3]
                                   [--preset mini] [--block-size 32]

The hosts are network namespaces, whose interfaces send and receive at most --rate. In each round a
group over all hosts (full_shard, a micro-batch of one sample for each trainer) trains with one
level, then with two; the median of the rounds' ratios counts. Bytes are those that the interfaces
have sent. All hosts compute on the cores of this machine: samples are short, so that the network
limits a step, as it does where each host has cores of its own.

Prints one JSON line per run, then the table. Needs root, `ip`, `tc` and `nft`.
"""

import json
import statistics

import harness
from attack import HostsRun, limited_network
from harness import table


def measure(flags, data, network, precision, level):
    """Seconds of a step, and MB that a host sends in it."""
    run = HostsRun(flags, data, network, flags.hosts, {"SIMPLESCALE_ONE_LEVEL": "1"} if level == "one" else {},
                   cluster__nodes=flags.hosts, cluster__trainers_per_node=flags.trainers, parallel__strategy="full_shard",
                   parallel__group_nodes=flags.hosts, train__micro_batch_size=1, train__precision=precision, model__block_size=flags.block_size,
                   checkpoint__disk_every_steps=0, checkpoint__peer_every_steps=0, supervision__warm_processes=0,
                   supervision__silence_ms=20000)
    row = dict(precision=precision, levels=level, **run.timed(flags.steps))
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = harness.parser("levels", __doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--trainers", type=int, default=4, help="of each host")
    parser.add_argument("--rate", default="1gbit", help="as tc names it")
    parser.add_argument("--steps", type=int, default=6, help="of each run, that are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--block-size", type=int, default=32, help="tokens of a sample")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    flags = parser.parse_args()
    network = limited_network("levels", flags.hosts, flags.rate)
    data = harness.write_tokens(flags, flags.preset)
    rows = []
    for precision in flags.precision:
        runs = [[measure(flags, data, network, precision, level) for level in ("one", "two")] for _ in range(flags.rounds)]
        one, two = ([r[i]["step_s"] for r in runs] for i in (0, 1))
        mb = [statistics.median(r[i]["host_mb"] for r in runs) for i in (0, 1)]
        rows.append([precision, f"{statistics.median(one):.2f}", f"{statistics.median(two):.2f}",
                     f"{harness.median_ratio(two, one):.2f}", f"{mb[0]:.0f}", f"{mb[1]:.0f}"])
    print(table(["", "one level, s a step", "two levels", "two / one", "MB a host sends, one level", "two"], rows))


if __name__ == "__main__":
    harness.run_main(main)
