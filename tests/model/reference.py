"""PyTorch's loss, logits and gradients of a small Llama, for reference_test.cpp.

usage: reference.py FOLDER DTYPE B dim hidden layers heads kv_heads vocab block_size tie scale

Reads   FOLDER/params.bin   fp32 parameters, unit by unit
        FOLDER/tokens.bin   int32 (B, T + 1)
Writes  FOLDER/logits.bin   fp32 (B, T, vocab)
        FOLDER/grads.bin    fp32, laid out as params.bin; gradients of loss * scale
        FOLDER/loss.bin     one float64

Parameters, activations and the residual stream are DTYPE; softmax and loss are float32.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F


def rope(x, cos, sin):  # x: (B, heads, T, D)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def main():
    folder, dtype = sys.argv[1], getattr(torch, sys.argv[2])
    B, C, hidden, layers, heads, kv_heads, V, T, tie = map(int, sys.argv[3:12])
    scale = float(sys.argv[12])
    D = C // heads
    torch.set_num_threads(1)
    flat = torch.from_numpy(np.fromfile(f"{folder}/params.bin", np.float32))
    tokens = torch.from_numpy(np.fromfile(f"{folder}/tokens.bin", np.int32)).long().view(B, T + 1)
    used, params = 0, []

    def take(*shape):
        nonlocal used
        count = int(np.prod(shape))
        p = flat[used : used + count].view(shape).to(dtype).requires_grad_()
        used += count
        params.append(p)
        return p

    freq = 1.0 / 10000.0 ** (torch.arange(0, D, 2).float() / D)
    angle = torch.outer(torch.arange(T).float(), freq)
    angle = torch.cat((angle, angle), -1)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

    table = take(V, C)
    x = F.embedding(tokens[:, :-1], table)
    split = lambda y: y.unflatten(-1, (-1, D)).transpose(1, 2)
    for _ in range(layers):
        norm1, q, k, v, o = take(C), take(C, C), take(kv_heads * D, C), take(kv_heads * D, C), take(C, C)
        norm2, gate, up, down = take(C), take(hidden, C), take(hidden, C), take(C, hidden)
        n = F.rms_norm(x, (C,), norm1, 1e-5)
        q, k, v = (split(F.linear(n, w)) for w in (q, k, v))
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).flatten(2), o)
        n = F.rms_norm(x, (C,), norm2, 1e-5)
        x = x + F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down)
    x = F.rms_norm(x, (C,), take(C), 1e-5)
    logits = F.linear(x, table if tie else take(V, C)).float()
    assert used == flat.numel(), (used, flat.numel())
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    (loss * scale).backward()
    logits.detach().numpy().tofile(f"{folder}/logits.bin")
    torch.cat([p.grad.float().flatten() for p in params]).numpy().tofile(f"{folder}/grads.bin")
    np.float64(loss.item()).tofile(f"{folder}/loss.bin")


main()
