// Our own device kernels, as plain functions over device pointers. Each call enqueues its work on
// `stream` and returns the error of the launch. This header is all that the .cu files include
// besides CUDA.
//
// T is float or Bf16. Arithmetic is fp32; a result is rounded to T once, when it is stored. Any
// size and any alignment; 16-byte aligned rows are accessed 16 bytes at a time. No kernel uses
// atomics, so the bits depend on the arguments only. tests/gpu/reference.hpp states the same
// mathematics as plain loops. Any thread, with the stream's device current.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "model/fp8.hpp"
#include "runtime/training/block_tree.hpp"
#include "runtime/training/stochastic_rounding.hpp"

namespace simplescale::cuda {

/// A bfloat16 as bits, for host and device code.
struct Bf16 {
  uint16_t bits;
};

// --- Rows (row_kernels.cu) ---

/// RMSNorm, arXiv 1910.07467: out = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps), row by
/// row. x, out: (rows, C); gamma: (C).
template <class T>
cudaError_t rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* gamma,
                     float eps, T* out);

/// sum = x + delta; out = rms_norm(sum). x, delta, sum, out: (rows, C); gamma: (C).
template <class T>
cudaError_t add_rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* delta,
                         const T* gamma, float eps, T* sum, T* out);

/// Number of partial sums of gamma's gradient that rms_norm_backward() writes for `rows` rows.
constexpr int64_t gamma_partials(int64_t rows) {
  return rows < 512 ? rows : 512;
}
/// From dy = d loss / d out: dx = d loss / d x + residual, and normed = rms_norm(x) again. residual
/// may be null or dx. x, dy, residual, dx, normed: (rows, C); gamma: (C); partial:
/// (gamma_partials(rows), C), the partial sums of gamma's gradient.
template <class T>
cudaError_t rms_norm_backward(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                              const T* gamma, float eps, const T* dy, const T* residual, T* dx,
                              T* normed, float* partial);
/// grad = the sum of the rows of `partial`. partial: (partials, C); grad: (C).
template <class T>
cudaError_t gamma_gradient(cudaStream_t stream, int64_t partials, int64_t C, const float* partial,
                           T* grad);

/// sum = x + rms_norm(y). y, x, sum: (rows, C); gamma: (C).
template <class T>
cudaError_t norm_add(cudaStream_t stream, int64_t rows, int64_t C, const T* y, const T* gamma,
                     float eps, const T* x, T* sum);

/// RMSNorm of parts of rows, in place: of each of the first `pieces` pieces of `width` elements of
/// each row by itself. Their values before it are copied to `before`. data, before:
/// (rows, pieces * width), rows ld and ld_before apart; gamma: (width).
template <class T>
cudaError_t norm_pieces(cudaStream_t stream, int64_t rows, int64_t pieces, int64_t width,
                        const T* gamma, float eps, T* data, int64_t ld, T* before,
                        int64_t ld_before);
/// d, the gradient of norm_pieces()'s result, becomes that of `before`. d: as data; partial:
/// (gamma_partials(rows * pieces), width), the partial sums of gamma's gradient.
template <class T>
cudaError_t norm_pieces_backward(cudaStream_t stream, int64_t rows, int64_t pieces, int64_t width,
                                 const T* before, int64_t ld_before, const T* gamma, float eps,
                                 T* d, int64_t ld, float* partial);

/// data[r] += row. data: (rows, columns); row: (columns).
template <class T>
cudaError_t add_row(cudaStream_t stream, int64_t rows, int64_t columns, const T* row, T* data);
/// The partial sums of the rows of x. x: (rows, columns); partial: (gamma_partials(rows), columns).
template <class T>
cudaError_t column_sums(cudaStream_t stream, int64_t rows, int64_t columns, const T* x,
                        float* partial);

/// out = a + b. a, b, out: (count); out may be a or b.
template <class T>
cudaError_t add(cudaStream_t stream, int64_t count, const T* a, const T* b, T* out);

/// SwiGLU, arXiv 2002.05202: act = silu(gate) * up. gate_up: (rows, 2 * hidden), gate first; act:
/// (rows, hidden).
template <class T>
cudaError_t swiglu(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up, T* act);
/// From dact: dgate_up, and act again. gate_up, dgate_up: (rows, 2 * hidden); dact, act:
/// (rows, hidden); act may be dact.
template <class T>
cudaError_t swiglu_backward(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up,
                            const T* dact, T* dgate_up, T* act);

// --- RoPE, arXiv 2104.09864 in Hugging Face's half-split form (rope_kernels.cu) ---

/// Rotates the pairs (i, i + D/2) of the first `heads` heads of each row, in place. Row r has
/// position r % block_size. cosine, sine: (block_size, D/2); data: (rows, ld).
template <class T>
cudaError_t rope(cudaStream_t stream, int64_t rows, int64_t heads, int64_t D, int64_t block_size,
                 const float* cosine, const float* sine, T* data, int64_t ld);

/// A (batch, heads, tokens, D) tensor: the strides of its first three dimensions in elements; D is
/// contiguous.
template <class T>
struct HeadView {
  const T* data;
  int64_t batch, head, token;
};
/// Gathers dq, dk and dv, with dq and dk rotated back, into dqkv:
/// (batch * block_size, (heads + 2 * kv_heads) * D). cosine, sine: (block_size, D/2).
template <class T>
cudaError_t rope_backward(cudaStream_t stream, int64_t batch, int64_t block_size, int64_t heads,
                          int64_t kv_heads, int64_t D, const float* cosine, const float* sine,
                          HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, T* dqkv);

// --- The first and the last unit of the model (loss_kernels.cu) ---

/// losses[r] = log(sum(exp(logits[r]))) - logits[r][targets[r]], in nats. gradient: logits become
/// (softmax * (1 + 2 z_loss * log(sum(exp(logits[r])))) - onehot) * scale, in place: the gradient
/// of loss + z_loss * log(sum(exp(logits[r])))^2. A row with a negative target has loss and gradient
/// 0. logits: (rows, V); targets, losses: (rows).
template <class T>
cudaError_t cross_entropy(cudaStream_t stream, int64_t rows, int64_t V, T* logits,
                          const int32_t* targets, float scale, float z_loss, bool gradient,
                          float* losses);

/// out[r] = table[tokens[r]]. table: (V, C); tokens: (rows); out: (rows, C).
template <class T>
cudaError_t embed(cudaStream_t stream, int64_t rows, int64_t C, const T* table,
                  const int32_t* tokens, T* out);

/// grad[v] = the sum of d[rows[i]] for begin[v] <= i < begin[v + 1], added in that order. begin:
/// (V + 1); rows: (N); d: (N, C); grad: (V, C).
template <class T>
cudaError_t embed_backward(cudaStream_t stream, int64_t V, int64_t C, const int32_t* begin,
                           const int32_t* rows, const T* d, T* grad);

// --- Factors of products in fp8 (fp8_kernels.cu) ---

/// What a factor is. Activations and weights are e4m3, gradients of a product's result e5m2. Weights
/// have a scale for each block of 128 x 128; activations and gradients for each 128 along the sum.
enum class Fp8Kind { activation, weight, gradient };
SS_HOST_DEVICE constexpr Fp8 fp8_format(Fp8Kind kind) {
  return kind == Fp8Kind::gradient ? Fp8::e5m2 : Fp8::e4m3;
}
SS_HOST_DEVICE constexpr bool fp8_square(Fp8Kind kind) {
  return kind == Fp8Kind::weight;
}
/// A factor in fp8; Gemm::run_fp8() sums over its columns. values: (rows, columns).
/// scales: of each block, what its values are multiplied with; fp8_scale_count() of them.
struct Fp8Values {
  uint8_t* values = nullptr;
  float* scales = nullptr;
};
/// Blocks of `count` values, and of a row of 128 x 128 blocks, which begins at a multiple of 4.
SS_HOST_DEVICE constexpr int64_t fp8_blocks(int64_t count) {
  return (count + kFp8Block - 1) / kFp8Block;
}
SS_HOST_DEVICE constexpr int64_t fp8_blocks_of_row(int64_t columns) {
  return (fp8_blocks(columns) + 3) / 4 * 4;
}
/// Where cuBLASLt expects the scale of the block of (row, column). square: blocks are 128 x 128, and
/// lie by rows; else they are 128 values of a row, and lie by columns.
SS_HOST_DEVICE constexpr int64_t fp8_scale_index(bool square, int64_t rows, int64_t columns,
                                                 int64_t row, int64_t column) {
  return square ? row / kFp8Block * fp8_blocks_of_row(columns) + column / kFp8Block
                : column / kFp8Block * rows + row;
}
constexpr int64_t fp8_scale_count(bool square, int64_t rows, int64_t columns) {
  return square ? fp8_blocks(rows) * fp8_blocks_of_row(columns) : rows * fp8_blocks(columns);
}
/// x, and its transpose, rounded with a scale for each block (fp8_scale_exponent()). Either result may
/// have no values: then it is not made. x: (rows, columns), aligned to 4 elements; rows, columns:
/// multiples of 4. What is not finite becomes NaN.
template <class T>
cudaError_t to_fp8(cudaStream_t stream, Fp8Kind kind, int64_t rows, int64_t columns, const T* x,
                   const Fp8Values& straight, const Fp8Values& turned);

// --- A shard's state (shard_kernels.cu) ---

/// to = from, rounded to nearest even. from, to: (count).
cudaError_t to_bf16(cudaStream_t stream, int64_t count, const float* from, Bf16* to);

/// sums[b] = sum of the squares of values[b], in double: 32 chains of 32 elements, then a tree.
/// values: (blocks, 1024); sums: (blocks).
cudaError_t block_square_sums(cudaStream_t stream, int64_t blocks, const float* values,
                              double* sums);
/// sums[i] = the sum of the values of trees[i] in tree order. values: one for each block of the
/// shard; their contents are lost. trees, sums: (count), also in pinned host memory.
cudaError_t tree_sums(cudaStream_t stream, int64_t count, const BlockTree* trees, double* values,
                      double* sums);

/// Elements per hashed block, as in runtime/training/state_hash.hpp.
constexpr int64_t kHashBlock = int64_t{1} << 16;
/// hashes[2 b], hashes[2 b + 1] = upper and lower half of XXH3's 128-bit hash (seed 0) of block b
/// of kHashBlock elements; the last block may be shorter. values: (count), 16-byte aligned; count:
/// a multiple of 1024; hashes: (2 * blocks), also in pinned host memory.
cudaError_t hash_blocks(cudaStream_t stream, int64_t count, const float* values, uint64_t* hashes);

struct AdamWConstants {
  float gradient_scale;  // clipping
  float keep;            // 1 - lr * weight_decay; 1 without decay
  float beta1, beta2;
  float step_size;                 // lr / (1 - beta1^t)
  float inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
  float eps;
};
/// AdamW, arXiv 1711.05101. All arrays: (count); to_* may be from_*. rounded: null, or receives
/// to_params as to_bf16() rounds them.
cudaError_t adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                  const float* gradient, const float* from_params, const float* from_avg,
                  const float* from_avg_sq, float* to_params, float* to_avg, float* to_avg_sq,
                  Bf16* rounded);
/// Which elements of the model are updated: the first one, and the key of the random bits.
struct Rounding {
  RoundingKey key;
  uint64_t element;
};
/// The same, with moments in bf16 that are rounded stochastically (stochastic_rounding.hpp).
cudaError_t adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                  const Rounding& rounding, const float* gradient, const float* from_params,
                  const Bf16* from_avg, const Bf16* from_avg_sq, float* to_params, Bf16* to_avg,
                  Bf16* to_avg_sq, Bf16* rounded);

/// Sums that lie left of a leaf in the tree, the largest first.
struct LeftSums {
  static constexpr int kMost = 10;  // waves have at most 2^10 micro-batches
  int count = 0;
  const float* sums[kMost] = {};
};
/// to = left[0] + (left[1] + (... + leaf)), in fp32. All: (count); to may be left[0].
template <class T>
cudaError_t add_leaf(cudaStream_t stream, int64_t count, const LeftSums& left, const T* leaf,
                     float* to);

/// Backend::average(). All: (count); to may be from.
cudaError_t average(cudaStream_t stream, int64_t count, float weight, const float* params,
                    const float* from, float* to);

// --- Muon (muon_kernels.cu) ---

/// With g = gradient_scale * gradient: to_avg = momentum * from_avg + (1 - momentum) * g;
/// gradient = momentum * to_avg + (1 - momentum) * g. All: (count); to_avg may be from_avg.
cudaError_t muon_momentum(cudaStream_t stream, int64_t count, float momentum, float gradient_scale,
                          float* gradient, const float* from_avg, float* to_avg);
/// The same, with the momentum in bf16 and rounded as in adamw().
cudaError_t muon_momentum(cudaStream_t stream, int64_t count, float momentum, float gradient_scale,
                          const Rounding& rounding, float* gradient, const Bf16* from_avg,
                          Bf16* to_avg);

/// to_params = keep * from_params - step * update. All: (count); to_params may be from_params.
template <class T>
cudaError_t muon_update(cudaStream_t stream, int64_t count, float keep, float step, const T* update,
                        const float* from_params, float* to_params);

/// out = a * x + b * y, rounded to T. x, y, out: (count); out may be x or y.
template <class T>
cudaError_t combine(cudaStream_t stream, int64_t count, float a, const T* x, float b, const T* y,
                    T* out);

/// x /= the root of the sum of its squares + epsilon; sums and root in double. x: (count); scratch:
/// (normalize_scratch(count)).
template <class T>
cudaError_t normalize(cudaStream_t stream, int64_t count, double epsilon, T* x, double* scratch);
constexpr int64_t normalize_scratch(int64_t count) {
  return (count + 1023) / 1024 + 1;
}

}  // namespace simplescale::cuda
