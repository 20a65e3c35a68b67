#!/usr/bin/env python3
"""bench parity_fsdp: losses and logits equal PyTorch FSDP2 and transformers, in every layout.

    ./simplescale bench parity_fsdp [--steps 20] [--only REGEX]

Trains with `simplescale train` and with fsdp_baseline.py from the same weights, with the same
samples, batch and schedule, in every layout and with every strategy. In fp32 the losses of all
steps must agree within 1e-4. In bf16 the differences are printed but have no limit, because the two
programs round at different places. Then the trained model is exported; the logits and the loss that
transformers computes with it must agree with ours within 1e-4.

Exit code 1 if anything differs by more than the limit.
"""

import json
import os
import re

import harness
from harness import Ours, Peer, call, table

PRESET, BATCH, WARMUP, LIMIT = "micro", 8, 5, 1e-4

# (name, nodes, trainers per node, settings, the baseline's flags for the same number of processes).
# The global batch is the same in all cases.
CASES = [
    ("1x1 full_shard", 1, 1, dict(parallel__strategy="full_shard"), ("--strategy", "none")),
    ("1x1 shard_grad_op", 1, 1, dict(parallel__strategy="shard_grad_op"), ("--strategy", "none")),
    ("1x1 hybrid_shard", 1, 1, dict(parallel__strategy="hybrid_shard"), ("--strategy", "none")),
    ("1x1 no_shard", 1, 1, dict(parallel__strategy="no_shard"), ("--strategy", "none")),
    ("1x1 auto", 1, 1, dict(parallel__strategy="auto"), ("--strategy", "none")),
    ("1x1 in 4 micro-batches", 1, 1, dict(train__micro_batch_size=2), ("--strategy", "none")),
    ("1x1 checkpointing", 1, 1, dict(train__activation_checkpointing=True), ("--strategy", "none")),
    ("1x2 full_shard", 1, 2, dict(parallel__strategy="full_shard"), ("--strategy", "full_shard")),
    ("1x2 shard_grad_op", 1, 2, dict(parallel__strategy="shard_grad_op"), ("--strategy", "shard_grad_op")),
    ("1x2 auto", 1, 2, dict(parallel__strategy="auto"), ("--strategy", "full_shard")),
    ("1x2 in 2 micro-batches", 1, 2, dict(train__micro_batch_size=2), ("--strategy", "full_shard")),
    ("1x4 full_shard", 1, 4, dict(parallel__strategy="full_shard"), ("--strategy", "full_shard")),
    ("1x4 shard_grad_op", 1, 4, dict(parallel__strategy="shard_grad_op"), ("--strategy", "shard_grad_op")),
    ("1x4 full_shard, 2 nodes", 2, 2, dict(parallel__strategy="full_shard", parallel__group_nodes=2),
     ("--strategy", "full_shard")),
    ("2x1 hybrid_shard", 2, 1, {}, ("--strategy", "hybrid_shard", "--groups", "2")),
    ("2x1 no_shard", 2, 1, dict(parallel__strategy="no_shard"), ("--strategy", "ddp")),
    ("2x2 hybrid_shard", 2, 2, {}, ("--strategy", "hybrid_shard", "--groups", "2")),
    ("2x2 shard_grad_op", 2, 2, dict(parallel__strategy="shard_grad_op"), ("--strategy", "hybrid_shard", "--groups", "2")),
    ("4x1 no_shard", 2, 2, dict(parallel__strategy="no_shard"), ("--strategy", "ddp")),
]


class Parity:
    def __init__(self, flags):
        self.flags = flags
        self.data = harness.write_tokens(flags, PRESET)
        self.ours, self.peer = Ours(flags, self.data), Peer(flags, self.data)
        self.peer_losses = {}
        self.failed = []

    def make_weights(self):
        """Writes a random Llama as a Hugging Face folder and imports it as a checkpoint."""
        self.hf, self.start = self.flags.work / "hf", self.flags.work / "imported"
        self.transformers(self.hf, "--make", PRESET, "--data", self.data)
        call(["rm", "-rf", self.start])
        call([self.ours.program, "import", self.hf, self.start])

    def transformers(self, folder, *options):
        """Runs transformers_parity.py. Returns its last line, parsed."""
        environment = dict(os.environ, PYTHONPATH=str(self.flags.peers), HF_HUB_OFFLINE="1")
        script = self.flags.peers.resolve() / "transformers_parity.py"
        return json.loads(call([self.flags.python.absolute(), script, folder.absolute(), *options], env=environment)
                          .splitlines()[-1])

    def baseline(self, processes, flags, dtype):
        """The losses of fsdp_baseline.py, which runs once per combination of arguments."""
        key = processes, flags, dtype
        if key not in self.peer_losses:
            run = self.peer.train(PRESET, processes, self.flags.steps, WARMUP, flags=(
                *flags, "--dtype", dtype, "--micro_batch_size", BATCH // processes,
                "--init", (self.hf / "model.safetensors").absolute()))
            self.peer_losses[key] = run.losses
        return self.peer_losses[key]

    def losses(self, name, nodes, trainers, settings, flags, precision, keep=False):
        """Trains one case. Returns its table row and run folder.

        Two columns of the row are the largest difference of the losses: from the baseline in this
        layout, and from the baseline in one process.
        """
        settings = {"train__micro_batch_size": BATCH // (nodes * trainers), **settings}
        run = self.ours.train(PRESET, nodes, trainers, self.flags.steps, WARMUP, start=self.start, keep=keep,
                              train__global_batch_size=BATCH, train__precision=precision, **settings)
        dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]
        away = lambda theirs: max(abs(a - b) for a, b in zip(run.losses, theirs, strict=True))
        alone = self.baseline(1, ("--strategy", "none"), dtype)
        here = away(self.baseline(nodes * trainers, flags, dtype)), away(alone)
        judged = precision == "fp32"
        ok = not judged or max(here) <= LIMIT
        result = dict(case=name, precision=precision, first_loss=run.losses[0], last_loss=run.losses[-1],
                      difference=here[0], difference_to_one_process=here[1], ok=ok)
        print(json.dumps(result), flush=True)
        if not ok:
            self.failed.append(f"{name}, {precision}: losses differ by {max(here):.2e}, limit {LIMIT:g}")
        verdict = "–" if not judged else "ok" if ok else "DIFFERS"
        return [name, precision, f"{run.losses[-1]:.4f}", *(f"{d:.1e}" for d in here), verdict], run.folder

    def logits(self, run, samples=4):
        """Exports the newest checkpoint of the run. Compares transformers' logits and loss with
        ours on the same samples."""
        import numpy as np

        exported = self.flags.work / "exported"
        call(["rm", "-rf", exported])
        call([self.ours.program, "export", run, exported])
        files = [(self.flags.work / f"logits-{who}.npy").absolute() for who in ("theirs", "ours")]
        theirs = self.transformers(exported, "--data", self.data, "--samples", samples, "--save-logits", files[0])
        compute = self.ours.program.with_name("simplescale-compute")
        call([compute, "logits", run, "--data", self.data, "--samples", samples, "--out", files[1]])
        evaluated = json.loads(call([compute, "evaluate", run, "--data", self.data, "--samples", samples, "--json"]))
        difference = float(np.abs(np.load(files[0]) - np.load(files[1])).max())
        loss = abs(theirs["loss"] - evaluated["val_loss"])
        print(json.dumps(dict(case="exported logits", difference=difference, loss_difference=loss)), flush=True)
        if difference > LIMIT or loss > LIMIT:
            self.failed.append(f"export: logits differ by {difference:.2e}, losses by {loss:.2e}, limit {LIMIT:g}")
        print(f"\nexport to transformers: {samples} samples, logits differ by at most {difference:.1e}, losses by {loss:.1e}")


def main():
    a = harness.parser("parity_fsdp", __doc__)
    a.add_argument("--steps", type=int, default=20)
    a.add_argument("--only", default="", help="run only the cases whose name matches this regular expression")
    flags = a.parse_args()
    parity = Parity(flags)
    parity.make_weights()
    rows, run = [], None
    for precision in ("fp32", "bf16"):
        for case in CASES:
            if not re.search(flags.only, case[0]) or (precision == "bf16" and "x2" not in case[0] and "1x1" not in case[0]):
                continue
            row, folder = parity.losses(*case, precision, keep=run is None)
            run = run or folder
            rows.append(row)
    head = ["groups x trainers", "precision", "last loss", "difference from PyTorch", "from PyTorch in 1 process", "within 1e-4"]
    print("\n" + table(head, rows))
    parity.logits(run)
    print("\n".join(parity.failed) or f"all cases agree within {LIMIT:g}")
    return 1 if parity.failed else 0


if __name__ == "__main__":
    harness.run_main(main)
