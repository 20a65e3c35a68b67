// Element-wise and row-wise kernels, each on one thread and on plain memory; callers cut rows into
// fixed blocks. The same source is compiled for four instruction sets (kernels_*.cpp), and
// kernels<T>() is the best one this CPU can run. T is float or Bf16; arithmetic is fp32 and T is
// rounded to once, on storing. Any size, any alignment. Any thread.
#pragma once

#include <cstdint>

#include "model/cpu/element.hpp"

namespace simplescale::cpu {

/// Kernels whose tensors have the model's element type.
template <class T>
struct Kernels {
  /// out = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps), row by row. arXiv 1910.07467. x,
  /// out: (rows, C).
  void (*rms_norm)(int64_t rows, int64_t C, const T* x, const T* gamma, float eps, T* out);
  /// sum = x + delta; out = rms_norm(sum). All (rows, C).
  void (*add_rms_norm)(int64_t rows, int64_t C, const T* x, const float* delta, const T* gamma,
                       float eps, T* sum, T* out);
  /// From dy = d loss / d out: dx = d loss / d x + residual; normed = rms_norm(x) again; dgamma (C)
  /// is overwritten with the sum over these rows in their order. residual may be null, and may be
  /// dx.
  void (*rms_norm_backward)(int64_t rows, int64_t C, const T* x, const T* gamma, float eps,
                            const float* dy, const T* residual, T* dx, T* normed, float* dgamma);
  /// out = a + b.
  void (*add)(int64_t count, const T* a, const float* b, T* out);
  /// to = from.
  void (*store)(int64_t rows, int64_t columns, const float* from, int64_t ld_from, T* to,
                int64_t ld_to);
  /// to = from * factors[row].
  void (*store_scaled)(int64_t rows, int64_t columns, const float* from, int64_t ld_from,
                       const float* factors, T* to, int64_t ld_to);
  /// Rotates the pairs (i, i + D/2) of each head, arXiv 2104.09864 in HF's half-split form. Row r
  /// has position (position + r) % block_size in cosine, sine: (block_size, D/2). inverse: rotates
  /// back (the backward pass). from, to: (rows, heads * D); may be the same.
  void (*rope)(int64_t rows, int64_t heads, int64_t D, int64_t position, int64_t block_size,
               const float* cosine, const float* sine, bool inverse, const float* from,
               int64_t ld_from, T* to, int64_t ld_to);
  /// act = silu(gate) * up; saved = gate_up. gate_up, saved: (rows, 2 * hidden), gate first; may be
  /// the same.
  void (*swiglu)(int64_t rows, int64_t hidden, const float* gate_up, T* saved, T* act);
  /// From dact: dgate_up (rows, 2 * hidden), and act again. dact and act may be the same.
  void (*swiglu_backward)(int64_t rows, int64_t hidden, const T* gate_up, const float* dact,
                          T* dgate_up, T* act);
  /// Causal softmax without its division: row r sees the first `visible + r` columns of scores
  /// (rows, columns). p = exp(scale * (s - max)), zero in the other columns; inverse_sum[r] = 1 /
  /// sum(p); lse[r] = log(sum(exp(scale * s))). p may be scores. ld: of both.
  void (*softmax)(int64_t rows, int64_t columns, int64_t visible, float scale, const float* scores,
                  int64_t ld, T* p, float* inverse_sum, float* lse);
  /// p = exp(scale * s - lse), ds = scale * p * (dp - delta), zero in the columns not seen. p may
  /// be scores and ds be dp.
  void (*softmax_backward)(int64_t rows, int64_t columns, int64_t visible, float scale,
                           const float* scores, const float* dp, int64_t ld, const float* lse,
                           const float* delta, T* p, T* ds);
  /// out[r] = sum(a[r] * b[r]).
  void (*row_dots)(int64_t rows, int64_t columns, const T* a, int64_t ld_a, const T* b,
                   int64_t ld_b, float* out);
  /// losses[r] = log(sum(exp(logits[r]))) - logits[r][target]. If dlogits is not null (it may be
  /// logits), it becomes (softmax - onehot) * scale; logits are overwritten. logits, dlogits:
  /// (rows, V).
  void (*cross_entropy)(int64_t rows, int64_t V, float* logits, const int32_t* targets, float scale,
                        T* dlogits, float* losses);
  /// out = (add ? out : 0) + sum of the rows x[which[i]] in that order. x: (., C); out: (C).
  void (*sum_rows)(int64_t count, const int32_t* which, int64_t C, const T* x, bool add, T* out);
};

/// Kernels on the fp32 state of a shard.
struct ShardKernels {
  void (*to_bf16)(int64_t count, const float* from, Bf16* to);
  /// sums[b] = sum of squares of values[1024 b ...] in double and in element order.
  void (*square_sums)(int64_t blocks, const float* values, double* sums);
  struct AdamWConstants {
    float gradient_scale, keep, beta1, beta2, step_size, inverse_root_correction2, eps;
  };
  /// keep: 1 - lr * weight_decay; step_size: lr / (1 - beta1^t); inverse_root_correction2: 1 /
  /// sqrt(1 - beta2^t).
  void (*adamw)(int64_t count, const AdamWConstants& constants, const float* gradient,
                const float* from_params, const float* from_avg, const float* from_avg_sq,
                float* to_params, float* to_avg, float* to_avg_sq);
};

enum class Isa { generic, avx2, avx512, avx512_bf16 };
/// The best instruction set of this CPU.
Isa best_isa();
const char* to_string(Isa isa);

template <class T>
const Kernels<T>& kernels(Isa isa = best_isa());
const ShardKernels& shard_kernels(Isa isa = best_isa());

}  // namespace simplescale::cpu
