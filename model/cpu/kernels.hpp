// Element-wise and row-wise kernels. A kernel runs on one thread and on plain memory; callers cut
// tensors into fixed blocks of rows. The same source is compiled for four instruction sets
// (kernels_*.cpp); kernels<T>() are those of the set that this process uses (instructions.hpp).
//
// T is float or Bf16. Arithmetic is fp32; a result is rounded to T once, when it is stored. Any
// size, any alignment. Any thread.
#pragma once

#include <cstdint>

#include "model/cpu/element.hpp"
#include "model/cpu/instructions.hpp"
#include "runtime/training/stochastic_rounding.hpp"

namespace simplescale::cpu {

/// Kernels over tensors of the model's element type.
template <class T>
struct Kernels {
  /// RMSNorm, arXiv 1910.07467: out = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps), row
  /// by row. x, out: (rows, C); gamma: (C).
  void (*rms_norm)(int64_t rows, int64_t C, const T* x, const T* gamma, float eps, T* out);
  /// sum = x + delta; out = rms_norm(sum). x, delta, sum, out: (rows, C); gamma: (C).
  void (*add_rms_norm)(int64_t rows, int64_t C, const T* x, const float* delta, const T* gamma,
                       float eps, T* sum, T* out);
  /// From dy = d loss / d out: dx = d loss / d x + residual, and normed = rms_norm(x) again. dgamma
  /// is overwritten with the sum over these rows in their order. residual may be null or dx.
  /// x, dy, residual, dx, normed: (rows, C); gamma, dgamma: (C).
  void (*rms_norm_backward)(int64_t rows, int64_t C, const T* x, const T* gamma, float eps,
                            const float* dy, const T* residual, T* dx, T* normed, float* dgamma);
  /// sum = x + rms_norm(y). y, x, sum: (rows, C); gamma: (C).
  void (*norm_add)(int64_t rows, int64_t C, const T* y, const T* gamma, float eps, const T* x,
                   T* sum);
  /// RMSNorm of parts of rows: of each of the first `pieces` pieces of `width` elements of each
  /// row by itself. x, out: (rows, pieces * width), rows ld_x and ld_out apart; gamma: (width).
  void (*norm_pieces)(int64_t rows, int64_t pieces, int64_t width, const T* x, int64_t ld_x,
                      const T* gamma, float eps, float* out, int64_t ld_out);
  /// d, the gradient of norm_pieces()'s output, becomes that of x. dgamma is overwritten with the
  /// sum over these rows and their pieces. d: as out; dgamma: (width).
  void (*norm_pieces_backward)(int64_t rows, int64_t pieces, int64_t width, const T* x,
                               int64_t ld_x, const T* gamma, float eps, T* d, int64_t ld_d,
                               float* dgamma);
  /// data[r] += row. data: (rows, columns), rows ld apart; row: (columns).
  void (*add_row)(int64_t rows, int64_t columns, const T* row, float* data, int64_t ld);
  /// sum = the sum of the rows of x in their order. x: (rows, columns), rows ld apart; sum:
  /// (columns).
  void (*column_sums)(int64_t rows, int64_t columns, const T* x, int64_t ld, float* sum);
  /// to = from. from, to: (count).
  void (*widen)(int64_t count, const T* from, float* to);
  /// out = a + b. a, b, out: (count).
  void (*add)(int64_t count, const T* a, const float* b, T* out);
  /// to = from, rounded to T. from, to: (rows, columns), rows ld_from and ld_to elements apart.
  void (*store)(int64_t rows, int64_t columns, const float* from, int64_t ld_from, T* to,
                int64_t ld_to);
  /// to = from * factors[row], rounded to T. As store(); factors: (rows).
  void (*store_scaled)(int64_t rows, int64_t columns, const float* from, int64_t ld_from,
                       const float* factors, T* to, int64_t ld_to);
  /// RoPE, arXiv 2104.09864 in Hugging Face's half-split form: rotates the pairs (i, i + D/2) of
  /// each head. Row r has position (position + r) % block_size. inverse: rotates back, for the
  /// backward pass. from, to: (rows, heads * D), rows ld_from and ld_to apart; to may be from.
  /// cosine, sine: (block_size, D/2).
  void (*rope)(int64_t rows, int64_t heads, int64_t D, int64_t position, int64_t block_size,
               const float* cosine, const float* sine, bool inverse, const float* from,
               int64_t ld_from, T* to, int64_t ld_to);
  /// SwiGLU, arXiv 2002.05202: act = silu(gate) * up; saved = gate_up. gate_up, saved:
  /// (rows, 2 * hidden), gate first; saved may be gate_up. act: (rows, hidden).
  void (*swiglu)(int64_t rows, int64_t hidden, const float* gate_up, T* saved, T* act);
  /// From dact: dgate_up, and act again. gate_up, dgate_up: (rows, 2 * hidden); dact, act:
  /// (rows, hidden); act may be dact.
  void (*swiglu_backward)(int64_t rows, int64_t hidden, const T* gate_up, const float* dact,
                          T* dgate_up, T* act);
  /// swiglu_backward() of rows whose SwiGLU is multiplied by weights[r]. dact: the gradient of the
  /// weighted SwiGLU; act: that, again; dots[r]: the gradient of weights[r]. weights, dots: (rows).
  void (*weighted_swiglu_backward)(int64_t rows, int64_t hidden, const T* gate_up,
                                   const float* dact, const float* weights, T* dgate_up, T* act,
                                   float* dots);
  /// Causal softmax without its division. Row r sees the first visible + r columns, of them only
  /// the last `window` if that is not 0; p is zero in the others. scores, p: (rows, columns), rows
  /// ld apart; p may be scores. inverse_sum, lse: (rows).
  ///   p              = exp(scale * (score - max))
  ///   inverse_sum[r] = 1 / sum(p)
  ///   lse[r]         = log(sum(exp(scale * score)))
  void (*softmax)(int64_t rows, int64_t columns, int64_t visible, int64_t window, float scale,
                  const float* scores, int64_t ld, T* p, float* inverse_sum, float* lse);
  /// p = exp(scale * score - lse) and ds = scale * p * (dp - delta); both zero in the columns that
  /// a row does not see. scores, dp, p, ds: (rows, columns), rows ld apart; p may be scores, ds may
  /// be dp. lse, delta: (rows).
  void (*softmax_backward)(int64_t rows, int64_t columns, int64_t visible, int64_t window,
                           float scale, const float* scores, const float* dp, int64_t ld,
                           const float* lse, const float* delta, T* p, T* ds);
  /// out[r] = sum(a[r] * b[r]). a, b: (rows, columns), rows ld_a and ld_b apart; out: (rows).
  void (*row_dots)(int64_t rows, int64_t columns, const T* a, int64_t ld_a, const T* b,
                   int64_t ld_b, float* out);
  /// losses[r] = log(sum(exp(logits[r]))) - logits[r][targets[r]], in nats. If dlogits is not null,
  /// it becomes (softmax * (1 + 2 z_loss * log(sum(exp(logits[r])))) - onehot) * scale, the
  /// gradient of loss + z_loss * log(sum(exp(logits[r])))^2; it may be logits. logits are
  /// overwritten. A row with a negative target has loss and gradient 0. logits, dlogits: (rows, V);
  /// targets, losses: (rows).
  void (*cross_entropy)(int64_t rows, int64_t V, float* logits, const int32_t* targets, float scale,
                        float z_loss, T* dlogits, float* losses);
  /// out = a * x + b * y, rounded to T. x, y, out: (count); out may be x or y.
  void (*combine)(int64_t count, float a, const T* x, float b, const float* y, T* out);
  /// to_params = keep * from_params - step * update. All: (count); to_params may be from_params.
  void (*muon_update)(int64_t count, float keep, float step, const T* update,
                      const float* from_params, float* to_params);
  /// out = the sum of the rows x[which[i]], added in that order. which: (count); x: (any, C); out:
  /// (C).
  void (*sum_rows)(int64_t count, const int32_t* which, int64_t C, const T* x, T* out);
  /// out = the sum of weights[i] * x[which[i]], added in that order. weights: (count), or null: all 1.
  /// out: (C); the others as in sum_rows().
  void (*weighted_sum_rows)(int64_t count, const int32_t* which, const float* weights, int64_t C,
                            const T* x, float* out);
};

/// Kernels over the fp32 state of a shard.
struct ShardKernels {
  /// to = from, rounded to nearest even. from, to: (count).
  void (*to_bf16)(int64_t count, const float* from, Bf16* to);
  /// sums[b] = sum of the squares of values[b], in double and in element order. values:
  /// (blocks, 1024); sums: (blocks).
  void (*square_sums)(int64_t blocks, const float* values, double* sums);
  struct AdamWConstants {
    float gradient_scale;  // clipping
    float keep;            // 1 - lr * weight_decay; 1 without decay
    float beta1, beta2;
    float step_size;                 // lr / (1 - beta1^t)
    float inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
    float eps;
  };
  /// AdamW, arXiv 1711.05101. All arrays: (count); to_* may be from_*.
  void (*adamw)(int64_t count, const AdamWConstants& constants, const float* gradient,
                const float* from_params, const float* from_avg, const float* from_avg_sq,
                float* to_params, float* to_avg, float* to_avg_sq);
  /// Which elements of the model are updated: the first one, and the key of the random bits.
  struct Rounding {
    RoundingKey key;
    uint64_t element;
  };
  /// The same, with moments in bf16 that are rounded stochastically (stochastic_rounding.hpp).
  void (*adamw_bf16)(int64_t count, const AdamWConstants& constants, const Rounding& rounding,
                     const float* gradient, const float* from_params, const Bf16* from_avg,
                     const Bf16* from_avg_sq, float* to_params, Bf16* to_avg, Bf16* to_avg_sq);
  /// With g = gradient_scale * gradient: to_avg = momentum * from_avg + (1 - momentum) * g;
  /// gradient = momentum * to_avg + (1 - momentum) * g. All: (count); to_avg may be from_avg.
  void (*muon_momentum)(int64_t count, float momentum, float gradient_scale, float* gradient,
                        const float* from_avg, float* to_avg);
  /// The same, with the momentum in bf16 and rounded as in adamw_bf16.
  void (*muon_momentum_bf16)(int64_t count, float momentum, float gradient_scale,
                             const Rounding& rounding, float* gradient, const Bf16* from_avg,
                             Bf16* to_avg);
  /// Backend::average(). All: (count); to may be from.
  void (*average)(int64_t count, float weight, const float* params, const float* from, float* to);
};

/// set: not automatic, and one that this CPU has. amx has no kernels of its own.
template <class T>
const Kernels<T>& kernels(InstructionSet set = used_instructions());
const ShardKernels& shard_kernels(InstructionSet set = used_instructions());

}  // namespace simplescale::cpu
