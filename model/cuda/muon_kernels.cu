// Muon's element-wise work, and the norm of a matrix. Shapes: kernels.hpp.
#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

/// M: of the momentum. Each product is rounded, as on the CPU (shard_kernels.cu).
template <class A, class M>
__global__ void muon_momentum_kernel(int64_t vectors, float momentum, float gradient_scale,
                                     Rounding rounding, float* gradient, const M* from_avg,
                                     M* to_avg) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const int64_t i = j * A::n;
  float g[A::n], avg[A::n];
  A::load(gradient + i, g);
  load_elements<A::n>(from_avg + i, avg);
  for (int k = 0; k < A::n; ++k) {
    const float mine = __fmul_rn(__fmul_rn(g[k], gradient_scale), 1.0f - momentum);
    avg[k] = __fadd_rn(__fmul_rn(avg[k], momentum), mine);
    g[k] = __fadd_rn(__fmul_rn(avg[k], momentum), mine);
  }
  store_moments<A::n>(to_avg + i, avg, rounding, i, 0);
  A::store(gradient + i, g);
}

/// A sum over ranks turns -0 into 0, and a layout without such a sum keeps -0; update + 0 is 0 in
/// both.
template <class T>
__global__ void muon_update_kernel(int64_t count, float keep, float step, const T* update,
                                   const float* from_params, float* to_params) {
  const int64_t i = item_of_thread();
  if (i >= count) return;
  to_params[i] =
      __fsub_rn(__fmul_rn(from_params[i], keep), __fmul_rn(to_float(update[i]) + 0.0f, step));
}

template <class T, class A>
__global__ void combine_kernel(int64_t vectors, float a, const T* x, float b, const T* y, T* out) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const int64_t i = j * A::n;
  float v[A::n], w[A::n];
  A::load(x + i, v);
  A::load(y + i, w);
  for (int k = 0; k < A::n; ++k) v[k] = a * v[k] + b * w[k];
  A::store(out + i, v);
}

/// One warp per block of 1024 elements: lane l adds elements l, l + 32, ... in that order.
template <class T>
__global__ void square_sums_kernel(int64_t blocks, int64_t count, const T* values, double* sums) {
  const int64_t block = item_of_thread() / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (block >= blocks) return;  // all threads of a warp have the same block
  const int64_t end = (block + 1) * 1024 < count ? (block + 1) * 1024 : count;
  double sum = 0;
  for (int64_t i = block * 1024 + lane; i < end; i += 32) {
    const double v = to_float(values[i]);
    sum += v * v;
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane == 0) sums[block] = sum;
}

/// One block of threads: sums[blocks] = 1 / (root of the sum of `blocks` sums + epsilon).
__global__ void inverse_root_kernel(int64_t blocks, double epsilon, double* sums) {
  __shared__ double of_warp[32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) sum += sums[i];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = of_warp[threadIdx.x % 32];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (threadIdx.x == 0) sums[blocks] = 1 / (sqrt(sum) + epsilon);
}

template <class T, class A>
__global__ void scale_kernel(int64_t vectors, const double* factor, T* x) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  const float a = static_cast<float>(*factor);
  float v[A::n];
  A::load(x + j * A::n, v);
  for (int k = 0; k < A::n; ++k) v[k] *= a;
  A::store(x + j * A::n, v);
}

template <class M>
cudaError_t launch_momentum(cudaStream_t stream, int64_t count, float momentum,
                            float gradient_scale, const Rounding& rounding, float* gradient,
                            const M* from_avg, M* to_avg) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<float>::n;
  if (packable<float>(count, gradient) && moments_aligned<M>(from_avg, to_avg))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      muon_momentum_kernel<Packed<float>, M>, count / n, momentum, gradient_scale,
                      rounding, gradient, from_avg, to_avg);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads},
                    muon_momentum_kernel<Single<float>, M>, count, momentum, gradient_scale,
                    rounding, gradient, from_avg, to_avg);
}

}  // namespace

cudaError_t muon_momentum(cudaStream_t stream, int64_t count, float momentum, float gradient_scale,
                          float* gradient, const float* from_avg, float* to_avg) {
  return launch_momentum(stream, count, momentum, gradient_scale, {}, gradient, from_avg, to_avg);
}

cudaError_t muon_momentum(cudaStream_t stream, int64_t count, float momentum, float gradient_scale,
                          const Rounding& rounding, float* gradient, const Bf16* from_avg,
                          Bf16* to_avg) {
  return launch_momentum(stream, count, momentum, gradient_scale, rounding, gradient, from_avg,
                         to_avg);
}

template <class T>
cudaError_t muon_update(cudaStream_t stream, int64_t count, float keep, float step, const T* update,
                        const float* from_params, float* to_params) {
  if (count == 0) return cudaSuccess;
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, muon_update_kernel<T>, count,
                    keep, step, update, from_params, to_params);
}

template <class T>
cudaError_t combine(cudaStream_t stream, int64_t count, float a, const T* x, float b, const T* y,
                    T* out) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(count, x, y, out))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      combine_kernel<T, Packed<T>>, count / n, a, x, b, y, out);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, combine_kernel<T, Single<T>>,
                    count, a, x, b, y, out);
}

template <class T>
cudaError_t normalize(cudaStream_t stream, int64_t count, double epsilon, T* x, double* scratch) {
  if (count == 0) return cudaSuccess;
  const int64_t blocks = normalize_scratch(count) - 1;
  cudaError_t error = gpu_launch({stream, blocks_for(blocks * 32, kThreads), kThreads},
                                 square_sums_kernel<T>, blocks, count, x, scratch);
  if (error != cudaSuccess) return error;
  constexpr unsigned threads = 1024;  // 32 warps, as of_warp has room for
  error = gpu_launch({stream, 1, threads}, inverse_root_kernel, blocks, epsilon, scratch);
  if (error != cudaSuccess) return error;
  constexpr int n = Packed<T>::n;
  if (packable<T>(count, x))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      scale_kernel<T, Packed<T>>, count / n, scratch + blocks, x);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, scale_kernel<T, Single<T>>,
                    count, scratch + blocks, x);
}

#define SS_INSTANTIATE(T)                                                                       \
  template cudaError_t muon_update(cudaStream_t, int64_t, float, float, const T*, const float*, \
                                   float*);                                                     \
  template cudaError_t combine(cudaStream_t, int64_t, float, const T*, float, const T*, T*);    \
  template cudaError_t normalize(cudaStream_t, int64_t, double, T*, double*);
SS_INSTANTIATE(float)
SS_INSTANTIATE(Bf16)

}  // namespace simplescale::cuda
