// Cross-entropy with its gradient in place, and embeddings forward and backward. Shapes:
// kernels.hpp.
#include <cfloat>

#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

/// The maximum m of a set of numbers, and the sum of exp(number - m) over them.
struct MaxSum {
  float max, sum;
};
__device__ MaxSum combined(MaxSum a, MaxSum b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}
__device__ MaxSum of_warp(MaxSum v) {
  for (int mask = 16; mask > 0; mask /= 2)
    v = combined(
        v, {__shfl_xor_sync(0xffffffffu, v.max, mask), __shfl_xor_sync(0xffffffffu, v.sum, mask)});
  return v;
}

/// One block per row. The initial maximum is -FLT_MAX, which is finite, so that differences are
/// finite, too. Running maximum and sum: arXiv 1805.02867.
template <class T, class A>
__global__ void cross_entropy_kernel(int64_t V, T* logits, const int32_t* targets, float scale,
                                     float z_loss, bool gradient, float* losses) {
  __shared__ MaxSum of_warps[32];
  T* row = logits + static_cast<int64_t>(blockIdx.x) * V;
  const int64_t target = targets[blockIdx.x];
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * A::n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * A::n;
  const float chosen = target < 0 ? 0.0f : to_float(row[target]);
  float v[A::n];
  MaxSum mine{-FLT_MAX, 0};
  for (int64_t i = begin; i < V; i += stride) {
    A::load(row + i, v);
    float max = mine.max;
    for (int k = 0; k < A::n; ++k) max = fmaxf(max, v[k]);
    float sum = mine.sum * expf(mine.max - max);
    for (int k = 0; k < A::n; ++k) sum += expf(v[k] - max);
    mine = {max, sum};
  }
  mine = of_warp(mine);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) of_warps[warp] = mine;
  __syncthreads();  // every thread has read the row and `chosen`: the row may be overwritten
  mine = lane < static_cast<int>(blockDim.x) / 32 ? of_warps[lane] : MaxSum{-FLT_MAX, 0};
  mine = of_warp(mine);
  const float log_sum = logf(mine.sum) + mine.max;
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : log_sum - chosen;
  if (!gradient) return;
  const float factor = target < 0 ? 0.0f : scale * (1 + 2 * z_loss * log_sum) / mine.sum;
  for (int64_t i = begin; i < V; i += stride) {
    A::load(row + i, v);
    for (int k = 0; k < A::n; ++k)
      v[k] = expf(v[k] - mine.max) * factor - (i + k == target ? scale : 0.0f);
    A::store(row + i, v);
  }
}

template <class T, class A>
__global__ void embed_kernel(int64_t items, int64_t C, const T* table, const int32_t* tokens,
                             T* out) {
  const int64_t item = item_of_thread();
  if (item >= items) return;
  const int64_t row = item / (C / A::n), i = item % (C / A::n) * A::n;
  float v[A::n];
  A::load(table + tokens[row] * C + i, v);
  A::store(out + row * C + i, v);
}

/// Block (v, y) computes n * blockDim.x columns of token v.
template <class T, class A>
__global__ void embed_backward_kernel(int64_t C, const int32_t* begin, const int32_t* rows,
                                      const T* d, T* grad) {
  const int64_t token = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * A::n;
  const int32_t first = begin[token], end = begin[token + 1];
  if (i >= C) return;
  float sum[A::n] = {}, v[A::n];
#pragma unroll 4
  for (int32_t k = first; k < end; ++k) {
    A::load(d + rows[k] * C + i, v);
    for (int j = 0; j < A::n; ++j) sum[j] += v[j];
  }
  A::store(grad + token * C + i, sum);
}

}  // namespace

template <class T>
cudaError_t cross_entropy(cudaStream_t stream, int64_t rows, int64_t V, T* logits,
                          const int32_t* targets, float scale, float z_loss, bool gradient,
                          float* losses) {
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(rows);
  if (packable<T>(V, logits))
    return gpu_launch({stream, grid, threads_for(V, Packed<T>::n, 512)},
                      cross_entropy_kernel<T, Packed<T>>, V, logits, targets, scale, z_loss,
                      gradient, losses);
  return gpu_launch({stream, grid, threads_for(V, 1, 512)}, cross_entropy_kernel<T, Single<T>>, V,
                    logits, targets, scale, z_loss, gradient, losses);
}

template <class T>
cudaError_t embed(cudaStream_t stream, int64_t rows, int64_t C, const T* table,
                  const int32_t* tokens, T* out) {
  const int64_t count = rows * C;
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(C, table, out))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      embed_kernel<T, Packed<T>>, count / n, C, table, tokens, out);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, embed_kernel<T, Single<T>>,
                    count, C, table, tokens, out);
}

template <class T>
cudaError_t embed_backward(cudaStream_t stream, int64_t V, int64_t C, const int32_t* begin,
                           const int32_t* rows, const T* d, T* grad) {
  constexpr int n = Packed<T>::n;
  // Small blocks, which spread the C/n threads that read a frequent token's rows.
  constexpr int64_t threads = 64;
  const auto tokens = static_cast<unsigned>(V);
  if (packable<T>(C, d, grad))
    return gpu_launch({stream, dim3(tokens, blocks_for(C / n, threads)), threads},
                      embed_backward_kernel<T, Packed<T>>, C, begin, rows, d, grad);
  return gpu_launch({stream, dim3(tokens, blocks_for(C, threads)), threads},
                    embed_backward_kernel<T, Single<T>>, C, begin, rows, d, grad);
}

#define SS_INSTANTIATE(T)                                                                       \
  template cudaError_t cross_entropy(cudaStream_t, int64_t, int64_t, T*, const int32_t*, float, \
                                     float, bool, float*);                                      \
  template cudaError_t embed(cudaStream_t, int64_t, int64_t, const T*, const int32_t*, T*);     \
  template cudaError_t embed_backward(cudaStream_t, int64_t, int64_t, const int32_t*,           \
                                      const int32_t*, const T*, T*);
SS_INSTANTIATE(float)
SS_INSTANTIATE(Bf16)

}  // namespace simplescale::cuda
