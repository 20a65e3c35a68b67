// Element-wise work on a shard's fp32 state. Shapes: kernels.hpp.
#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

__global__ void to_bf16_kernel(int64_t vectors, const float* from, Bf16* to) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  float v[8];
  load_elements<8>(from + j * 8, v);
  Packed<Bf16>::store(to + j * 8, v);
}

__global__ void to_bf16_single_kernel(int64_t count, const float* from, Bf16* to) {
  const int64_t i = item_of_thread();
  if (i < count) to[i] = rounded<Bf16>(from[i]);
}

/// One warp per block of 1024 elements: lane l adds elements l, l + 32, ... in that order.
__global__ void block_square_sums_kernel(int64_t blocks, const float* values, double* sums) {
  const int64_t block = item_of_thread() / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (block >= blocks) return;  // all threads of a warp have the same block
  const float* at = values + block * 1024 + lane;
  double sum = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const double v = at[i * 32];
    sum += v * v;
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane == 0) sums[block] = sum;
}

/// A block of threads for each tree: as sum_in_tree_order().
__global__ void tree_sums_kernel(const BlockTree* trees, double* values, double* sums) {
  const BlockTree tree = trees[blockIdx.x];
  double* at = values + tree.first;
  for (int64_t half = (int64_t{1} << tree.level) / 2; half > 0; half /= 2) {
    for (int64_t first = 0; first < half; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const double sum = i < half ? at[2 * i] + at[2 * i + 1] : 0;
      __syncthreads();  // all threads have read: what is written next was read in this round
      if (i < half) at[i] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = at[0];
}

/// M: of the moments, float or Bf16.
template <class M>
struct AdamWPointers {
  const float *gradient, *from_params;
  const M *from_avg, *from_avg_sq;
  float* to_params;
  M *to_avg, *to_avg_sq;
  Bf16* rounded;  // of to_params; null: not wanted
};

/// AdamW, arXiv 1711.05101, with the CPU's bits: __fmul_rn() and the like, which nvcc never contracts
/// to a fused multiply-add.
template <class A, class M>
__global__ void adamw_kernel(int64_t vectors, AdamWConstants c, Rounding rounding,
                             AdamWPointers<M> p) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const int64_t i = j * A::n;
  float g[A::n], param[A::n], avg[A::n], avg_sq[A::n];
  A::load(p.gradient + i, g);
  A::load(p.from_params + i, param);
  load_elements<A::n>(p.from_avg + i, avg);
  load_elements<A::n>(p.from_avg_sq + i, avg_sq);
  for (int k = 0; k < A::n; ++k) {
    const float d = __fmul_rn(g[k], c.gradient_scale);
    avg[k] = __fadd_rn(__fmul_rn(avg[k], c.beta1), __fmul_rn(d, 1.0f - c.beta1));
    avg_sq[k] =
        __fadd_rn(__fmul_rn(avg_sq[k], c.beta2), __fmul_rn(__fmul_rn(d, d), 1.0f - c.beta2));
    const float denominator =
        __fadd_rn(__fmul_rn(sqrtf(avg_sq[k]), c.inverse_root_correction2), c.eps);
    param[k] = __fsub_rn(__fmul_rn(param[k], c.keep), __fmul_rn(c.step_size, avg[k]) / denominator);
  }
  A::store(p.to_params + i, param);
  if (p.rounded) store_rounded<A::n>(p.rounded + i, param);
  store_moments<A::n>(p.to_avg + i, avg, rounding, i, 0);
  store_moments<A::n>(p.to_avg_sq + i, avg_sq, rounding, i, 16);
}

/// The CPU's bits, as adamw_kernel().
template <class A>
__global__ void average_kernel(int64_t vectors, float weight, const float* params,
                               const float* from, float* to) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const int64_t i = j * A::n;
  float param[A::n], mean[A::n];
  A::load(params + i, param);
  A::load(from + i, mean);
  for (int k = 0; k < A::n; ++k)
    mean[k] = __fadd_rn(mean[k], __fmul_rn(__fsub_rn(param[k], mean[k]), weight));
  A::store(to + i, mean);
}

/// n elements of each thread; of all arrays those at the front.
template <int n, class T>
__global__ void add_leaf_kernel(int64_t vectors, LeftSums left, const T* leaf, float* to) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const int64_t i = j * n;
  float sum[n], summand[n];
  load_elements<n>(leaf + i, sum);
  for (int s = left.count; s-- > 0;) {
    load_elements<n>(left.sums[s] + i, summand);
    for (int k = 0; k < n; ++k) sum[k] = summand[k] + sum[k];
  }
  if constexpr (n == 1)
    to[i] = sum[0];
  else
    Packed<float>::store(to + i, sum);
}

template <class M>
cudaError_t launch_adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                         const Rounding& rounding, const AdamWPointers<M>& p) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<float>::n;
  if (packable<float>(count, p.gradient, p.from_params, p.to_params) &&
      moments_aligned<M>(p.from_avg, p.from_avg_sq, p.to_avg, p.to_avg_sq) &&
      moments_aligned<Bf16>(p.rounded))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      adamw_kernel<Packed<float>, M>, count / n, constants, rounding, p);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, adamw_kernel<Single<float>, M>,
                    count, constants, rounding, p);
}

}  // namespace

cudaError_t to_bf16(cudaStream_t stream, int64_t count, const float* from, Bf16* to) {
  const int64_t vectors = packable<Bf16>(8, from, to) ? count / 8 : 0, done = vectors * 8;
  if (vectors > 0) {
    const cudaError_t error = gpu_launch({stream, blocks_for(vectors, kThreads), kThreads},
                                         to_bf16_kernel, vectors, from, to);
    if (error != cudaSuccess) return error;
  }
  if (count == done) return cudaSuccess;
  return gpu_launch({stream, blocks_for(count - done, kThreads), kThreads}, to_bf16_single_kernel,
                    count - done, from + done, to + done);
}

cudaError_t block_square_sums(cudaStream_t stream, int64_t blocks, const float* values,
                              double* sums) {
  if (blocks == 0) return cudaSuccess;
  return gpu_launch({stream, blocks_for(blocks * 32, kThreads), kThreads}, block_square_sums_kernel,
                    blocks, values, sums);
}

cudaError_t tree_sums(cudaStream_t stream, int64_t count, const BlockTree* trees, double* values,
                      double* sums) {
  if (count == 0) return cudaSuccess;
  constexpr unsigned threads = 1024;  // many: a unit's largest tree has nearly all of its blocks
  return gpu_launch({stream, static_cast<unsigned>(count), threads}, tree_sums_kernel, trees,
                    values, sums);
}

cudaError_t adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                  const float* gradient, const float* from_params, const float* from_avg,
                  const float* from_avg_sq, float* to_params, float* to_avg, float* to_avg_sq,
                  Bf16* rounded) {
  return launch_adamw<float>(
      stream, count, constants, {},
      {gradient, from_params, from_avg, from_avg_sq, to_params, to_avg, to_avg_sq, rounded});
}

cudaError_t adamw(cudaStream_t stream, int64_t count, const AdamWConstants& constants,
                  const Rounding& rounding, const float* gradient, const float* from_params,
                  const Bf16* from_avg, const Bf16* from_avg_sq, float* to_params, Bf16* to_avg,
                  Bf16* to_avg_sq, Bf16* rounded) {
  return launch_adamw<Bf16>(
      stream, count, constants, rounding,
      {gradient, from_params, from_avg, from_avg_sq, to_params, to_avg, to_avg_sq, rounded});
}

template <class T>
cudaError_t add_leaf(cudaStream_t stream, int64_t count, const LeftSums& left, const T* leaf,
                     float* to) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<float>::n;
  bool packed = packable<float>(count, to) && moments_aligned<T>(leaf);
  for (int s = 0; s < left.count; ++s) packed = packed && packable<float>(count, left.sums[s]);
  if (packed)
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads}, add_leaf_kernel<n, T>,
                      count / n, left, leaf, to);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, add_leaf_kernel<1, T>, count,
                    left, leaf, to);
}
template cudaError_t add_leaf<float>(cudaStream_t, int64_t, const LeftSums&, const float*, float*);
template cudaError_t add_leaf<Bf16>(cudaStream_t, int64_t, const LeftSums&, const Bf16*, float*);

cudaError_t average(cudaStream_t stream, int64_t count, float weight, const float* params,
                    const float* from, float* to) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<float>::n;
  if (packable<float>(count, params, from, to))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      average_kernel<Packed<float>>, count / n, weight, params, from, to);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, average_kernel<Single<float>>,
                    count, weight, params, from, to);
}

}  // namespace simplescale::cuda
