"""PyTorch's loss, logits and gradients of a small Llama, for reference_test.cpp.

usage: reference.py FOLDER SETTINGS

SETTINGS is a JSON object: dtype, B, scale, z_loss and the members of ModelShape.

Reads   FOLDER/params.bin   fp32 parameters, unit by unit
        FOLDER/tokens.bin   int32 (B, T + 1); bit 30: begins a document, bit 29: is no target
Writes  FOLDER/logits.bin   fp32 (B, T, vocab)
        FOLDER/grads.bin    fp32, laid out as params.bin; gradients of
                            (loss + z_loss * mean(logsumexp^2)) * scale
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


def forward(take, tokens, s, dtype):
    """Logits in fp32. tokens: (B, T + 1), with their marks. take(*shape) returns the next parameter, unit by unit."""
    C, hidden, heads, kv_heads = s["dim"], s["hidden"], s["heads"], s["kv_heads"]
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
    for _ in range(s["layers"]):
        norm1, weights = take(C), [take(A, C), take(K, C), take(K, C)]
        biases = [take(A), take(K), take(K)] if s["qkv_bias"] else [None] * 3
        qk = {"none": None, "head": (D, D), "whole": (A, K)}[s["qk_norm"]]
        qk_norms = [take(width) for width in qk] if qk else None
        o, norm2, gate, up, down = take(C, A), take(C), take(hidden, C), take(hidden, C), take(C, hidden)
        n = x if post else norm(x, norm1)
        q, k, v = (F.linear(n, w, b) for w, b in zip(weights, biases))
        if s["qk_norm"] == "whole":
            q, k = norm(q, qk_norms[0]), norm(k, qk_norms[1])
        q, k, v = split(q), split(k), split(v)
        if s["qk_norm"] == "head":
            q, k = norm(q, qk_norms[0]), norm(k, qk_norms[1])
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, attn_mask=seen, enable_gqa=True)
        y = F.linear(y.transpose(1, 2).flatten(2), o)
        x = x + (norm(y, norm1) if post else y)
        n = x if post else norm(x, norm2)
        y = F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down)
        x = x + (norm(y, norm2) if post else y)
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

    logits = forward(take, tokens, s, dtype)
    assert used == flat.numel(), (used, flat.numel())
    trained = tokens[:, 1:] >> 29 & 1 == 0
    targets = torch.where(trained, tokens[:, 1:] & (1 << 29) - 1, -100)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / trained.numel()
    z = s["z_loss"] * (logits.logsumexp(-1).square() * trained).mean()
    ((loss + z) * s["scale"]).backward()
    logits.detach().numpy().tofile(f"{folder}/logits.bin")
    torch.cat([p.grad.float().flatten() for p in params]).numpy().tofile(f"{folder}/grads.bin")
    np.float64(loss.item()).tofile(f"{folder}/loss.bin")


if __name__ == "__main__":
    main()
