"""PyTorch's loss, logits and gradients of a small Llama, for reference_test.cpp.

usage: reference.py FOLDER SETTINGS

SETTINGS is a JSON object: dtype, B, scale, z_loss, fp8 and the members of ModelShape.

Reads   FOLDER/params.bin   fp32 parameters, unit by unit
        FOLDER/tokens.bin   int32 (B, T + 1); bit 30: begins a document, bit 29: is no target
Writes  FOLDER/logits.bin   fp32 (B, T, vocab)
        FOLDER/grads.bin    fp32, laid out as params.bin; gradients of
                            (loss + z_loss * mean(logsumexp^2)) * scale; the routers' own losses are
                        weighted by the share of the targets that are trained
        FOLDER/loss.bin     one float64, without the z-loss

Parameters, activations and the residual stream are DTYPE; softmax and loss are float32.
"""

import json
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F


def rope(x, cos, sin):  # x: (B, heads, T, D)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def frequencies(s, D):
    """RoPE's, scaled as the shape says; llama3 as in Meta's apply_scaling()."""
    plain = 1.0 / s["rope_theta"] ** (torch.arange(0, D, 2).float() / D)
    if s["rope_scaling"] == "none":
        return plain
    if s["rope_scaling"] == "linear":
        return plain / s["rope_factor"]
    if s["rope_scaling"] == "yarn":  # arXiv 2309.00071, with the bounds rounded as transformers does
        index = lambda waves: D * math.log(s["rope_original_block_size"] / (waves * 2 * math.pi)) / (2 * math.log(s["rope_theta"]))
        first, last = max(math.floor(index(s["rope_high_factor"])), 0), min(math.ceil(index(s["rope_low_factor"])), D - 1)
        share = ((torch.arange(D // 2).float() - first) / ((last - first) or 0.001)).clamp(0, 1)
        return plain / s["rope_factor"] * share + plain * (1 - share)
    low, high, original = s["rope_low_factor"], s["rope_high_factor"], s["rope_original_block_size"]
    scaled = []
    for f in plain.tolist():
        wave = 2 * math.pi / f
        if wave < original / high:
            scaled.append(f)
        elif wave > original / low:
            scaled.append(f / s["rope_factor"])
        else:
            smooth = (original / wave - low) / (high - low)
            scaled.append((1 - smooth) * f / s["rope_factor"] + smooth * f)
    return torch.tensor(scaled)


def rounded(x, dtype, height, width):
    """x with each block of height x width rounded to an fp8 dtype, scaled by the largest power of two that fits."""
    rows, columns = x.shape
    grid = F.pad(x.float(), (0, -columns % width, 0, -rows % height)).unflatten(1, (-1, width)).unflatten(0, (-1, height))
    largest = grid.abs().amax((1, 3), keepdim=True)
    scale = torch.where(largest > 0, (torch.finfo(dtype).max / largest).log2().floor().exp2(), 1)
    return ((grid * scale).to(dtype).float() / scale).flatten(2).flatten(0, 1)[:rows, :columns].to(x.dtype)


class Fp8Linear(torch.autograd.Function):
    """x weight^T with factors in fp8, and products of its gradients likewise."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        e4m3 = torch.float8_e4m3fn
        return rounded(x.flatten(0, -2), e4m3, 1, 128).matmul(rounded(weight, e4m3, 128, 128).T).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, dy):
        (x, weight), shape = ctx.saved_tensors, dy.shape[:-1]
        x, dy, e4m3, e5m2 = x.flatten(0, -2), dy.flatten(0, -2), torch.float8_e4m3fn, torch.float8_e5m2
        dx = rounded(dy, e5m2, 1, 128).matmul(rounded(weight, e4m3, 128, 128))
        return dx.unflatten(0, shape), rounded(dy, e5m2, 128, 1).T.matmul(rounded(x, e4m3, 128, 1))


def linear(s, x, *weights):
    """x weight^T of each weight; in fp8 they are rounded as the one matrix that they are in ours."""
    if not s.get("fp8"):
        return [F.linear(x, weight) for weight in weights]
    return Fp8Linear.apply(x, torch.cat(weights)).split([len(weight) for weight in weights], -1)


def experts(s, n, router, bias, weights, losses):
    """What the experts make of n: (tokens, C). weights: of each expert, (gate, up, down). losses: receives the router's."""
    x, logits = s["experts"], n.float() @ router.float().T
    scores = logits.softmax(-1) if x["score"] == "softmax" else logits.sigmoid()
    choice = scores.detach() + (0 if bias is None else bias.float())
    if x["groups"] > 1:
        of_group = choice.unflatten(-1, (x["groups"], -1))
        best = of_group.amax(-1) if x["score"] == "softmax" else of_group.topk(2)[0].sum(-1)
        kept = torch.zeros_like(best).scatter(-1, best.topk(x["groups_per_token"])[1], 1).bool()
        choice = of_group.masked_fill(~kept[..., None], -math.inf).flatten(-2)
    chosen = choice.topk(x["per_token"])[1]
    w = scores.gather(-1, chosen)
    w = x["scale"] * (w / w.sum(-1, keepdim=True) if x["normalize"] else w)
    y = torch.zeros_like(n, dtype=torch.float32)
    for e, (gate, up, down) in enumerate(weights):
        of_expert = F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down).float()
        y = y + (w * (chosen == e)).sum(-1, keepdim=True) * of_expert
    load = F.one_hot(chosen, x["count"]).sum(1).float().mean(0)
    s.get("loads", []).append(load * len(n))
    mean = (scores / (1 if x["score"] == "softmax" else scores.sum(-1, keepdim=True))).mean(0)
    losses.append(s["router_z_loss"] * logits.logsumexp(-1).square().mean())
    losses.append(s["router_balance_loss"] * x["count"] / x["per_token"] * (load * mean).sum())
    return y.to(n.dtype)


def forward(take, tokens, s, dtype, losses=None):
    """Logits in fp32. losses: receives those of the routers. tokens: (B, T + 1), with their marks. take(*shape) returns the next parameter, unit by unit."""
    C, heads, kv_heads = s["dim"], s["heads"], s["kv_heads"]
    V, T, D, post, eps = s["vocab"], s["block_size"], s["head_dim"], s["norm"] == "post", 1e-5
    A, K = heads * D, kv_heads * D
    begins = (tokens >> 30 & 1).bool()
    tokens = tokens & (1 << 29) - 1
    begins[:, 0] = True
    document = begins[:, :T].cumsum(1)
    row = torch.arange(T).expand(len(tokens), T)
    position = row - torch.where(begins[:, :T], row, 0).cummax(1).values  # restarts in each document
    angle = position[:, None, :, None].float() * frequencies(s, D)
    angle = torch.cat((angle, angle), -1)
    scale = 0.1 * math.log(s["rope_factor"]) + 1 if s["rope_scaling"] == "yarn" else 1
    cos, sin = (scale * angle.cos()).to(dtype), (scale * angle.sin()).to(dtype)
    far = torch.arange(T)[:, None] - torch.arange(T)[None, :]  # tokens from key to query
    seen = (far >= 0) & (far < (s["sliding_window"] or T)) & (document[:, :, None] == document[:, None, :])
    seen = seen[:, None]  # (B, 1, T, T)

    norm = lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)
    split = lambda y: y.unflatten(-1, (-1, D)).transpose(1, 2)
    table = take(V, C)
    x = F.embedding(tokens[:, :-1], table)
    x_of = s.get("experts", {"count": 0})
    for layer in range(s["layers"]):
        routed = x_of["count"] > 0 and layer >= x_of["dense_layers"]
        hidden = x_of["shared"] * x_of["hidden"] if routed else s["hidden"]
        norm1, weights = take(C), [take(A, C), take(K, C), take(K, C)]
        biases = [take(A), take(K), take(K)] if s["qkv_bias"] else [None] * 3
        qk = {"none": None, "head": (D, D), "whole": (A, K)}[s["qk_norm"]]
        qk_norms = [take(width) for width in qk] if qk else None
        o, norm2 = take(C, A), take(C)
        router = take(x_of["count"], C) if routed else None
        bias = take(x_of["count"]) if routed and x_of["bias"] else None
        mlp = lambda width: (take(width, C), take(width, C), take(C, width))
        gate, up, down = mlp(hidden) if hidden else (None, None, None)
        of_experts = [mlp(x_of["hidden"]) for _ in range(x_of["count"])] if routed else []
        n = x if post else norm(x, norm1)
        q, k, v = (y if b is None else y + b for y, b in zip(linear(s, n, *weights), biases))
        if s["qk_norm"] == "whole":
            q, k = norm(q, qk_norms[0]), norm(k, qk_norms[1])
        q, k, v = split(q), split(k), split(v)
        if s["qk_norm"] == "head":
            q, k = norm(q, qk_norms[0]), norm(k, qk_norms[1])
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, attn_mask=seen, enable_gqa=True)
        (y,) = linear(s, y.transpose(1, 2).flatten(2), o)
        x = x + (norm(y, norm1) if post else y)
        n = x if post else norm(x, norm2)
        if hidden:
            gate, up = linear(s, n, gate, up)
            (y,) = linear(s, F.silu(gate) * up, down)
            x = x + (norm(y, norm2) if post else y)
        if routed:
            x = x + experts(s, n.flatten(0, 1), router, bias, of_experts, losses).view_as(x)
    x = norm(x, take(C))
    logits = F.linear(x, table if s["tie_embeddings"] else take(V, C)).float()
    return logits


def main():
    folder, s = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dtype = getattr(torch, s["dtype"])
    flat = torch.from_numpy(np.fromfile(f"{folder}/params.bin", np.float32))
    tokens = torch.from_numpy(np.fromfile(f"{folder}/tokens.bin", np.int32)).long()
    tokens = tokens.view(s["B"], s["block_size"] + 1)
    used, params = 0, []

    def take(*shape):
        nonlocal used
        count = int(np.prod(shape))
        p = flat[used : used + count].view(shape).to(dtype).requires_grad_()
        used += count
        params.append(p)
        return p

    losses = []
    logits = forward(take, tokens, s, dtype, losses)
    assert used == flat.numel(), (used, flat.numel())
    trained = tokens[:, 1:] >> 29 & 1 == 0
    targets = torch.where(trained, tokens[:, 1:] & (1 << 29) - 1, -100)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / trained.numel()
    z = s["z_loss"] * (logits.logsumexp(-1).square() * trained).mean()
    ((loss + z + sum(losses) * trained.float().mean()) * s["scale"]).backward()
    logits.detach().numpy().tofile(f"{folder}/logits.bin")
    torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.float().flatten() for p in params]).numpy().tofile(f"{folder}/grads.bin")
    np.float64(loss.item()).tofile(f"{folder}/loss.bin")


if __name__ == "__main__":
    main()
