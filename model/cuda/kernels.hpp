// Our own device kernels, as plain functions over device pointers: each puts its work on `stream`
// and returns what the launch said. This header is all that .cu files include besides CUDA.
//
// T is float or Bf16; arithmetic is fp32 and T is rounded to once, on storing. Any size and any
// alignment; 16-byte aligned rows are read and written 16 bytes at a time. No kernel uses atomics:
// the bits depend on the arguments alone (K1). Plain loops that say the same are in reference.hpp.
// Any thread, with the stream's device current.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace simplescale::cuda {

/// A bfloat16 as bits, on both sides.
struct Bf16 {
  uint16_t bits;
};

// --- Rows (row_kernels.cu) ---

/// out = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps), row by row. arXiv 1910.07467.
/// x, out: (rows, C); gamma: (C).
template <class T>
cudaError_t rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* gamma,
                     float eps, T* out);

/// sum = x + delta; out = rms_norm(sum). All (rows, C).
template <class T>
cudaError_t add_rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* delta,
                         const T* gamma, float eps, T* sum, T* out);

/// How many partial sums of gamma's gradient a backward pass over `rows` rows leaves.
constexpr int64_t gamma_partials(int64_t rows) {
  return rows < 512 ? rows : 512;
}
/// From dy = d loss / d out: dx = d loss / d x + residual; normed = rms_norm(x) again; partial:
/// (gamma_partials(rows), C). residual may be null, and may be dx.
template <class T>
cudaError_t rms_norm_backward(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                              const T* gamma, float eps, const T* dy, const T* residual, T* dx,
                              T* normed, float* partial);
/// grad (C) = the sum of partial (partials, C) over its rows.
template <class T>
cudaError_t gamma_gradient(cudaStream_t stream, int64_t partials, int64_t C, const float* partial,
                           T* grad);

/// out = a + b, element by element; out may be either.
template <class T>
cudaError_t add(cudaStream_t stream, int64_t count, const T* a, const T* b, T* out);

/// act = silu(gate) * up. gate_up: (rows, 2 * hidden), gate first; act: (rows, hidden).
template <class T>
cudaError_t swiglu(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up, T* act);
/// From dact: dgate_up (rows, 2 * hidden), and act again. dact and act may be the same.
template <class T>
cudaError_t swiglu_backward(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up,
                            const T* dact, T* dgate_up, T* act);

// --- Rotary positions, arXiv 2104.09864 in the half-split form (rope_kernels.cu) ---

/// Rotates the pairs (i, i + D/2) of the first `heads` heads of each row, in place. Row r has
/// position r % block_size in cosine, sine: (block_size, D/2). data: (rows, ld).
template <class T>
cudaError_t rope(cudaStream_t stream, int64_t rows, int64_t heads, int64_t D, int64_t block_size,
                 const float* cosine, const float* sine, T* data, int64_t ld);

/// A (batch, heads, tokens, D) tensor with these strides in elements; D is contiguous.
template <class T>
struct HeadView {
  const T* data;
  int64_t batch, head, token;
};
/// dqkv: (batch * block_size, (heads + 2 * kv_heads) * D) from dq, dk, dv: dq and dk rotated back.
template <class T>
cudaError_t rope_backward(cudaStream_t stream, int64_t batch, int64_t block_size, int64_t heads,
                          int64_t kv_heads, int64_t D, const float* cosine, const float* sine,
                          HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, T* dqkv);

// --- The ends of the model (loss_kernels.cu) ---

/// losses[r] = log(sum(exp(logits[r]))) - logits[r][target]. gradient: logits become
/// (softmax - onehot) * scale, in place. logits: (rows, V).
template <class T>
cudaError_t cross_entropy(cudaStream_t stream, int64_t rows, int64_t V, T* logits,
                          const int32_t* targets, float scale, bool gradient, float* losses);

/// out[r] = table[tokens[r]]. table: (V, C); out: (rows, C).
template <class T>
cudaError_t embed(cudaStream_t stream, int64_t rows, int64_t C, const T* table,
                  const int32_t* tokens, T* out);

/// grad[v] = (accumulate ? grad[v] : 0) + the sum of d[rows[i]] for begin[v] <= i < begin[v + 1],
/// in that order. begin: (V + 1); grad: (V, C).
template <class T>
cudaError_t embed_backward(cudaStream_t stream, int64_t V, int64_t C, const int32_t* begin,
                           const int32_t* rows, const T* d, bool accumulate, T* grad);

// --- A shard's state (shard_kernels.cu) ---

cudaError_t to_bf16(cudaStream_t stream, int64_t count, const float* from, Bf16* to);

/// sums[b] = sum of squares of values[1024 b ...] in double: 32 chains of 32 elements, then a tree.
cudaError_t block_square_sums(cudaStream_t stream, int64_t blocks, const float* values,
                              double* sums);

/// Elements of a block that is hashed by itself: runtime/training/state_hash.hpp.
constexpr int64_t kHashBlock = int64_t{1} << 16;
/// hashes[2 b], hashes[2 b + 1] = upper and lower half of XXH3's 128-bit hash (seed 0) of block b
/// of kHashBlock elements of `values`, the last shorter. count: a multiple of 1024; values: 16-byte
/// aligned.
cudaError_t hash_blocks(cudaStream_t stream, int64_t count, const float* values, uint64_t* hashes);

/// keep: 1 - lr * weight_decay; step_size: lr / (1 - beta1^t); inverse_root_correction2: 1 / sqrt(1
/// - beta2^t). AdamW: arXiv 1711.05101.
struct AdamWConstants {
  float gradient_scale, keep, beta1, beta2, step_size, inverse_root_correction2, eps;
};
/// to* may be from*.
cudaError_t adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                  const float* gradient, const float* from_params, const float* from_avg,
                  const float* from_avg_sq, float* to_params, float* to_avg, float* to_avg_sq);

}  // namespace simplescale::cuda
