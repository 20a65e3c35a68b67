"""PyTorch's parameters of a small Llama after some steps, for engine_muon_test.cpp.

usage: reference_steps.py FOLDER SETTINGS

SETTINGS is a JSON object: steps, samples (of a step), optimizer, momentum, weight_decay, grad_clip,
z_loss, ema_decay, router_bias_rate, names, groups and the members of ModelShape that reference.py
needs. optimizer is adamw, muon (the plain one below, in float32) or torch.optim.Muon (whose products
are bfloat16). names: of the parameters, in their order. groups: pairs of a regular expression of
parameter names and a dict with learning_rate_factor, weight_decay or both.

Reads   FOLDER/params.bin   fp32 parameters, unit by unit
        FOLDER/tokens.bin   int32 (steps, samples, T + 1), with their marks
Writes  FOLDER/params.out   fp32, laid out as params.bin
        FOLDER/ema.out      likewise: their exponential moving average

Step n, from 1, has learning rate 1e-2 / n.
"""

import json
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F

from reference import forward


class PlainMuon(torch.optim.Optimizer):
    """Keller Jordan's Muon, with the update's scale of arXiv 2502.16982."""

    def __init__(self, params, lr, weight_decay, momentum):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @staticmethod
    def orthogonalized(g, steps=5):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g.T if g.shape[0] > g.shape[1] else g
        x = x / (x.norm() + 1e-7)
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if g.shape[0] > g.shape[1] else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("momentum", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                update = self.orthogonalized(p.grad.lerp(average, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def optimizers(s, params):
    """A group for each parameter, so that each has its own rates."""
    kinds = {"adamw": [], "muon": []}
    for name, p in zip(s["names"], params, strict=True):
        group = dict(params=[p], factor=1.0, weight_decay=s["weight_decay"] if p.dim() == 2 else 0.0)
        for pattern, rates in s["groups"]:
            if re.fullmatch(pattern, name):
                group["factor"] = rates.get("learning_rate_factor", 1.0)
                group["weight_decay"] = rates.get("weight_decay", group["weight_decay"])
                break
        matrix = p.dim() == 2 and ".layers." in name
        kinds["muon" if matrix and s["optimizer"] != "adamw" else "adamw"].append(group)
    made = [torch.optim.AdamW(kinds["adamw"], lr=0.0, betas=(0.9, 0.95), eps=1e-8)]
    if s["optimizer"] == "muon":
        made.append(PlainMuon(kinds["muon"], 0.0, 0.0, s["momentum"]))
    if s["optimizer"] == "torch.optim.Muon":
        made.append(torch.optim.Muon(kinds["muon"], lr=0.0, momentum=s["momentum"], adjust_lr_fn="match_rms_adamw"))
    return made


def main():
    folder, s = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    flat = torch.from_numpy(np.fromfile(f"{folder}/params.bin", np.float32))
    tokens = torch.from_numpy(np.fromfile(f"{folder}/tokens.bin", np.int32)).long()
    tokens = tokens.view(s["steps"], s["samples"], s["block_size"] + 1)
    used, params = 0, []

    def make(*shape):
        nonlocal used
        count = int(np.prod(shape))
        params.append(flat[used : used + count].view(shape).clone().requires_grad_())
        used += count
        return params[-1]

    forward(make, tokens[0], s, torch.float32, [])
    assert used == flat.numel(), (used, flat.numel())
    made = optimizers(s, params)
    averages, average = [p.detach().clone() for p in params], torch.optim.swa_utils.get_ema_multi_avg_fn(s["ema_decay"])
    for step in range(1, s["steps"] + 1):
        of_step, unused, losses = tokens[step - 1], iter(params), []
        s["loads"] = []
        logits = forward(lambda *shape: next(unused), of_step, s, torch.float32, losses)
        trained = of_step[:, 1:] >> 29 & 1 == 0
        targets = torch.where(trained, of_step[:, 1:] & (1 << 29) - 1, -100)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + sum(losses)
        loss = loss + s["z_loss"] * logits.logsumexp(-1)[trained].square().mean()
        for optimizer in made:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, s["grad_clip"])
        for optimizer in made:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / step * group["factor"]
            optimizer.step()
        biases = [p for name, p in zip(s["names"], params, strict=True) if name.endswith("e_score_correction_bias")]
        for bias, load in zip(biases, s["loads"]):  # arXiv 2408.15664; without biases none is left
            with torch.no_grad():
                bias += s["router_bias_rate"] * (load.sum() - len(load) * load).sign()
        average(averages, [p.detach() for p in params], step)
    for name, values in (("params", params), ("ema", averages)):
        torch.cat([v.detach().flatten() for v in values]).numpy().tofile(f"{folder}/{name}.out")


main()
