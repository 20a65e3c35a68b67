#!/usr/bin/env python3
"""bench snapshots: what the state of every step, ledger, checkpoints and exports cost.

    ./simplescale bench snapshots [--rounds 3] [--preset micro] [--precision fp32]

The first table has the steps per second in one process and on 2x2, with default settings and with
one setting changed: no ledger, disk checkpoints every 10 steps, TensorBoard's and W&B's files,
copies on a peer node (in one process there is no peer). In each round all variants run in turn.
`deterministic` changes nothing on a CPU.

The program always keeps the state of every step and always sums in tree order; no setting turns
this off. So the second table measures them alone, with state_bench, as a share of a step: the
double-buffered state against an optimizer that writes in place, the state's hash and copy, and sums
in tree order against a running sum.
"""

import json
import statistics

import harness
from harness import Ours, call, median_ratio, table

WAYS = {  # name -> settings
    "default": {},
    "without ledger": dict(data__ledger=False),
    "deterministic = false": dict(train__deterministic=False),
    "checkpoint every 10 steps": dict(checkpoint__disk_every_steps=10),
    "TensorBoard and W&B": dict(metrics__tensorboard=True, metrics__wandb=True),
    "peer copy every 10 steps": dict(checkpoint__peer_every_steps=10),
    "peer copy every step": dict(checkpoint__peer_every_steps=1),
}
LAYOUTS = {"1x1": (1, 1), "2x2": (2, 2)}
STEPS = {"micro": (70, 10), "mini": (15, 3)}


def main():
    a = harness.parser("snapshots", __doc__)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--preset", choices=list(STEPS), default="micro")
    a.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    flags = a.parse_args()
    ours = Ours(flags, harness.write_tokens(flags, flags.preset))
    steps, warmup = STEPS[flags.preset]
    rates = {(layout, way): [] for layout in LAYOUTS for way in WAYS}
    for number in range(flags.rounds):
        for layout, way in list(rates)[:: 1 if number % 2 == 0 else -1]:
            run = ours.train(flags.preset, *LAYOUTS[layout], steps, warmup, train__precision=flags.precision, **WAYS[way])
            rates[layout, way].append(1e3 * len(run.step_ms) / sum(run.step_ms))
            print(json.dumps(dict(layout=layout, way=way, steps_per_second=round(rates[layout, way][-1], 3))), flush=True)
    rows = [[f"{layout}, {way}", f"{statistics.median(rates[layout, way]):.2f}",
             f"{median_ratio(rates[layout, way], rates[layout, 'default']):.3f}"] for layout, way in rates]
    print("\n" + table([f"{flags.preset} {flags.precision}", "steps/s", "share of default"], rows) + "\n")

    lines = [json.loads(line) for line in call([flags.build / "bin/state_bench", flags.preset]).splitlines()]
    step_ms = 1e3 / statistics.median(rates["1x1", "default"])
    print(table([f"one process, a step takes {step_ms:.1f} ms", "ms", "share of a step"],
                [[line["what"], f"{line['ms']:.2f}", f"{line['ms'] / step_ms:.1%}"] for line in lines]))


if __name__ == "__main__":
    harness.run_main(main)
