"""Mixtures of experts for fsdp_baseline.py, as PyTorch's users train them: transformers' Mixtral and torchtitan's MoE.

Both compute the same: each token passes the top_k of n_experts SwiGLUs of width hidden with the largest softmax, whose
values are divided by their sum. Way is how the experts' products are made: a loop over experts, or torch's grouped_mm.

  transformers   MixtralForCausalLM, with its experts_implementation "eager" (the loop) or "grouped_mm"
  torchtitan     torchtitan/models/moe/moe.py: tokens sorted by expert, weights of all experts in three tensors, scores
                 multiplied after the experts; its grouped_mm rounds to bfloat16, here it takes the model's dtype
"""

import torch
import torch.nn.functional as F
from torch import nn

WAYS = ("transformers eager", "transformers grouped_mm", "torchtitan loop", "torchtitan grouped_mm")


class Mixtral(nn.Module):
    """tokens (B, T) int64 -> logits (B, T, V). Has the modules of fsdp_baseline.Llama."""

    def __init__(self, c, way):
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM

        model = MixtralForCausalLM(MixtralConfig(
            vocab_size=c.vocab, hidden_size=c.dim, intermediate_size=c.hidden, num_hidden_layers=c.n_layers,
            num_attention_heads=c.n_heads, num_key_value_heads=c.n_kv_heads, max_position_embeddings=c.block_size,
            rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, sliding_window=None,
            num_local_experts=c.n_experts, num_experts_per_tok=c.top_k, use_cache=False, tie_word_embeddings=False))
        model.set_experts_implementation(way)
        self.model, self.lm_head = model.model, model.lm_head

    def forward(self, tokens):
        return self.lm_head(self.model(input_ids=tokens).last_hidden_state)


class MoE(nn.Module):
    """torchtitan's. x: (B, T, C)."""

    def __init__(self, c, way):
        super().__init__()
        self.top_k, self.n_experts, self.grouped = c.top_k, c.n_experts, way == "grouped_mm"
        self.gate = nn.Parameter(torch.empty(c.n_experts, c.dim))
        self.w1, self.w3 = (nn.Parameter(torch.empty(c.n_experts, c.hidden, c.dim)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(c.n_experts, c.dim, c.hidden))

    def experts(self, x, counts):
        """x: (rows, C), sorted by expert; counts: the rows of each."""
        w1, w2, w3 = (w.to(x.dtype) for w in (self.w1, self.w2, self.w3))
        if self.grouped:
            offsets = counts.cumsum(0, dtype=torch.int32)
            product = lambda a, w: F.grouped_mm(a, w.transpose(-2, -1), offs=offsets)
            return product(F.silu(product(x, w1)) * product(x, w3), w2)
        parts = x.split(counts.int().tolist())
        return torch.cat([(F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T for e, part in enumerate(parts)])

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        scores = F.linear(x, self.gate.to(x.dtype)).float().softmax(-1)
        scores, chosen = scores.topk(self.top_k, dim=-1, sorted=False)
        scores = scores / scores.sum(-1, keepdim=True)
        counts = torch.histc(chosen.flatten().float(), bins=self.n_experts, min=0, max=self.n_experts - 1).int()
        order = chosen.flatten().argsort(stable=True)
        token = (order // self.top_k)[:, None].expand(-1, x.shape[-1])
        rows = self.experts(x.gather(0, token), counts)
        rows = (rows.float() * scores.flatten()[order, None]).to(x.dtype)
        return torch.zeros_like(x).scatter_add(0, token, rows).view(shape)
