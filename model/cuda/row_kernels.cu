// RMSNorm (arXiv 1910.07467), residual sums, biases and SwiGLU (arXiv 2002.05202), forward and backward.
// Shapes: kernels.hpp. A is the access policy, Single<T> or Packed<T>.
#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

// --- RMSNorm: one block per row. Each thread reads the same elements in both passes. ---

/// kAdd: sum = x + delta first; else delta and sum are not used.
template <class T, class A, bool kAdd>
__global__ void rms_norm_kernel(int64_t C, const T* x, const T* delta, const T* gamma, float eps,
                                T* sum, T* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * C;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * A::n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * A::n;
  float v[A::n], w[A::n];
  float squares = 0;
  for (int64_t i = begin; i < C; i += stride) {
    A::load(x + row + i, v);
    if (kAdd) {
      A::load(delta + row + i, w);
      for (int k = 0; k < A::n; ++k) v[k] = to_float(rounded<T>(v[k] + w[k]));
      A::store(sum + row + i, v);
    }
    for (int k = 0; k < A::n; ++k) squares += v[k] * v[k];
  }
  squares = block_sum(make_float2(squares, 0)).x;
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(C) + eps);
  const T* from = kAdd ? sum : x;
  for (int64_t i = begin; i < C; i += stride) {
    A::load(from + row + i, v);
    A::load(gamma + i, w);
    for (int k = 0; k < A::n; ++k) v[k] = v[k] * rstd * w[k];
    A::store(out + row + i, v);
  }
}

template <class T, bool kAdd>
cudaError_t launch_rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                            const T* delta, const T* gamma, float eps, T* sum, T* out) {
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(rows);
  if (packable<T>(C, x, delta, gamma, sum, out))
    return gpu_launch({stream, grid, threads_for(C, Packed<T>::n, 512)},
                      rms_norm_kernel<T, Packed<T>, kAdd>, C, x, delta, gamma, eps, sum, out);
  return gpu_launch({stream, grid, threads_for(C, 1, 512)}, rms_norm_kernel<T, Single<T>, kAdd>, C,
                    x, delta, gamma, eps, sum, out);
}

/// Block b computes rows b, b + gridDim.x, ... It keeps gamma's gradient over these rows in shared
/// memory: element i = n * j + k is at k * C/n + j, which only one thread accesses.
template <class T, class A>
__global__ void rms_norm_backward_kernel(int64_t rows, int64_t C, const T* x, const T* gamma,
                                         float eps, const T* dy, const T* residual, T* dx,
                                         T* normed, float* partial) {
  float* dgamma = dynamic_shared();
  const int64_t vectors = C / A::n;
  for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x)
    for (int k = 0; k < A::n; ++k) dgamma[k * vectors + j] = 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t row = r * C;
    float a[A::n], g[A::n], d[A::n];
    float2 sums = make_float2(0, 0);  // of x^2 and of dy * gamma * x
    for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x) {
      A::load(x + row + j * A::n, a);
      A::load(gamma + j * A::n, g);
      A::load(dy + row + j * A::n, d);
      for (int k = 0; k < A::n; ++k) {
        sums.x += a[k] * a[k];
        sums.y += d[k] * g[k] * a[k];
      }
    }
    sums = block_sum(sums);
    const float rstd = 1.0f / sqrtf(sums.x / static_cast<float>(C) + eps);
    const float mean = sums.y * rstd * rstd / static_cast<float>(C);
    for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x) {
      const int64_t i = row + j * A::n;
      float y[A::n], b[A::n], other[A::n] = {};
      A::load(x + i, a);
      A::load(gamma + j * A::n, g);
      A::load(dy + i, d);
      if (residual) A::load(residual + i, other);  // no load waits for the stores
      for (int k = 0; k < A::n; ++k) {
        y[k] = a[k] * rstd * g[k];
        dgamma[k * vectors + j] += d[k] * a[k] * rstd;
        b[k] = rstd * (d[k] * g[k] - a[k] * mean);
        if (residual) b[k] += other[k];
      }
      A::store(normed + i, y);
      A::store(dx + i, b);
    }
  }
  for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x)
    for (int k = 0; k < A::n; ++k) partial[blockIdx.x * C + j * A::n + k] = dgamma[k * vectors + j];
}

template <class T, class A>
cudaError_t launch_rms_norm_backward(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                                     const T* gamma, float eps, const T* dy, const T* residual,
                                     T* dx, T* normed, float* partial) {
  const size_t shared = static_cast<size_t>(C) * sizeof(float);
  return gpu_launch(
      {stream, static_cast<unsigned>(gamma_partials(rows)), threads_for(C, A::n, 256), shared},
      rms_norm_backward_kernel<T, A>, rows, C, x, gamma, eps, dy, residual, dx, normed, partial);
}

__device__ inline float2 warp_sum(float2 v) {
  for (int mask = 16; mask > 0; mask /= 2) {
    v.x += __shfl_xor_sync(0xffffffffu, v.x, mask);
    v.y += __shfl_xor_sync(0xffffffffu, v.y, mask);
  }
  return v;
}

constexpr int kNormWarps = 4, kAhead = 4;

/// The same for rows of at most 32 * n * kVectors elements. A warp computes a row and keeps x and
/// dy in registers, so that it reads them once and waits for no other warp. Each warp has its own
/// partial sums of gamma's gradient; at the end the block adds those of its warps.
template <class T, int kVectors>
__global__ void __launch_bounds__(kNormWarps * 32, 4)
    rms_norm_backward_warp_kernel(int64_t rows, int C, const T* x, const T* gamma, float eps,
                                  const T* dy, const T* residual, T* dx, T* normed,
                                  float* partial) {
  using A = Packed<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int vectors = C / A::n;
  float* const dgamma = dynamic_shared() + warp * C;
  for (int j = lane; j < vectors; j += 32)
    for (int k = 0; k < A::n; ++k) dgamma[k * vectors + j] = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kNormWarps;
  for (int64_t r = blockIdx.x + static_cast<int64_t>(gridDim.x) * warp; r < rows; r += stride) {
    const int64_t row = r * C;
    uint4 of_x[kVectors] = {}, of_dy[kVectors] = {};
    float a[A::n], g[A::n], d[A::n];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int j = v * 32 + lane;
      if (j >= vectors) continue;
      of_x[v] = *reinterpret_cast<const uint4*>(x + row + j * A::n);
      of_dy[v] = *reinterpret_cast<const uint4*>(dy + row + j * A::n);
    }
    float2 sums = make_float2(0, 0);  // of x^2 and of dy * gamma * x
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int j = v * 32 + lane;
      if (j >= vectors) continue;
      A::unpack(of_x[v], a);
      A::unpack(of_dy[v], d);
      A::load(gamma + j * A::n, g);
      for (int k = 0; k < A::n; ++k) {
        sums.x += a[k] * a[k];
        sums.y += d[k] * g[k] * a[k];
      }
    }
    sums = warp_sum(sums);
    const float rstd = 1.0f / sqrtf(sums.x / static_cast<float>(C) + eps);
    const float mean = sums.y * rstd * rstd / static_cast<float>(C);
    // The compiler moves no load before a store to what may be the same memory. So the residuals of
    // several vectors are loaded before any of them is stored.
#pragma unroll
    for (int first = 0; first < kVectors; first += kAhead) {
      uint4 of_residual[kAhead] = {};
#pragma unroll
      for (int v = 0; v < kAhead; ++v) {
        const int j = (first + v) * 32 + lane;
        if (residual && j < vectors)
          of_residual[v] = *reinterpret_cast<const uint4*>(residual + row + j * A::n);
      }
#pragma unroll
      for (int v = 0; v < kAhead; ++v) {
        const int j = (first + v) * 32 + lane;
        if (j >= vectors) continue;
        const int64_t i = row + j * A::n;
        float y[A::n], b[A::n];
        A::unpack(of_x[first + v], a);
        A::unpack(of_dy[first + v], d);
        A::load(gamma + j * A::n, g);
        for (int k = 0; k < A::n; ++k) {
          y[k] = a[k] * rstd * g[k];
          dgamma[k * vectors + j] += d[k] * a[k] * rstd;
          b[k] = rstd * (d[k] * g[k] - a[k] * mean);
        }
        A::store(normed + i, y);
        if (residual) {
          A::unpack(of_residual[v], a);
          for (int k = 0; k < A::n; ++k) b[k] += a[k];
        }
        A::store(dx + i, b);
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < C; i += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int w = 0; w < kNormWarps; ++w)
      sum += dynamic_shared()[w * C + i % A::n * vectors + i / A::n];
    partial[static_cast<int64_t>(blockIdx.x) * C + i] = sum;
  }
}

template <class T, int kVectors>
cudaError_t launch_rms_norm_backward_warps(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                                           const T* gamma, float eps, const T* dy,
                                           const T* residual, T* dx, T* normed, float* partial) {
  const size_t shared = static_cast<size_t>(kNormWarps * C) * sizeof(float);
  return gpu_launch({stream, static_cast<unsigned>(gamma_partials(rows)), kNormWarps * 32, shared},
                    rms_norm_backward_warp_kernel<T, kVectors>, rows, C, x, gamma, eps, dy,
                    residual, dx, normed, partial);
}

/// sum = x + rms_norm(y).
template <class T, class A>
__global__ void norm_add_kernel(int64_t C, const T* y, const T* gamma, float eps, const T* x,
                                T* sum) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * C;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * A::n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * A::n;
  float v[A::n], g[A::n], b[A::n];
  float squares = 0;
  for (int64_t i = begin; i < C; i += stride) {
    A::load(y + row + i, v);
    for (int k = 0; k < A::n; ++k) squares += v[k] * v[k];
  }
  squares = block_sum(make_float2(squares, 0)).x;
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(C) + eps);
  for (int64_t i = begin; i < C; i += stride) {
    A::load(y + row + i, v);
    A::load(gamma + i, g);
    A::load(x + row + i, b);
    for (int k = 0; k < A::n; ++k) b[k] += v[k] * rstd * g[k];
    A::store(sum + row + i, b);
  }
}

// --- RMSNorm of the pieces of rows: one block per piece. ---

/// Where piece `item` of a (rows, pieces * width) tensor begins.
__device__ inline int64_t place_of_piece(int64_t item, int64_t pieces, int64_t width, int64_t ld) {
  return item / pieces * ld + item % pieces * width;
}

template <class T, class A>
__global__ void norm_pieces_kernel(int64_t pieces, int64_t width, const T* gamma, float eps,
                                   T* data, int64_t ld, T* before, int64_t ld_before) {
  const int64_t item = blockIdx.x;
  T* const to = data + place_of_piece(item, pieces, width, ld);
  T* const copy = before + place_of_piece(item, pieces, width, ld_before);
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * A::n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * A::n;
  float v[A::n], g[A::n];
  float squares = 0;
  for (int64_t i = begin; i < width; i += stride) {
    A::load(to + i, v);
    A::store(copy + i, v);
    for (int k = 0; k < A::n; ++k) squares += v[k] * v[k];
  }
  squares = block_sum(make_float2(squares, 0)).x;
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
  for (int64_t i = begin; i < width; i += stride) {
    A::load(to + i, v);
    A::load(gamma + i, g);
    for (int k = 0; k < A::n; ++k) v[k] = v[k] * rstd * g[k];
    A::store(to + i, v);
  }
}

/// Block b computes pieces b, b + gridDim.x, ...; gamma's gradient is kept as in
/// rms_norm_backward_kernel().
template <class T, class A>
__global__ void norm_pieces_backward_kernel(int64_t items, int64_t pieces, int64_t width,
                                            const T* before, int64_t ld_before, const T* gamma,
                                            float eps, T* d, int64_t ld, float* partial) {
  float* dgamma = dynamic_shared();
  const int64_t vectors = width / A::n;
  for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x)
    for (int k = 0; k < A::n; ++k) dgamma[k * vectors + j] = 0;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const T* const x = before + place_of_piece(item, pieces, width, ld_before);
    T* const dy = d + place_of_piece(item, pieces, width, ld);
    float a[A::n], g[A::n], v[A::n];
    float2 sums = make_float2(0, 0);  // of x^2 and of dy * gamma * x
    for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x) {
      A::load(x + j * A::n, a);
      A::load(gamma + j * A::n, g);
      A::load(dy + j * A::n, v);
      for (int k = 0; k < A::n; ++k) {
        sums.x += a[k] * a[k];
        sums.y += v[k] * g[k] * a[k];
      }
    }
    sums = block_sum(sums);
    const float rstd = 1.0f / sqrtf(sums.x / static_cast<float>(width) + eps);
    const float mean = sums.y * rstd * rstd / static_cast<float>(width);
    for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x) {
      A::load(x + j * A::n, a);
      A::load(gamma + j * A::n, g);
      A::load(dy + j * A::n, v);
      for (int k = 0; k < A::n; ++k) {
        dgamma[k * vectors + j] += v[k] * a[k] * rstd;
        v[k] = rstd * (v[k] * g[k] - a[k] * mean);
      }
      A::store(dy + j * A::n, v);
    }
  }
  for (int64_t j = threadIdx.x; j < vectors; j += blockDim.x)
    for (int k = 0; k < A::n; ++k)
      partial[blockIdx.x * width + j * A::n + k] = dgamma[k * vectors + j];
}

// --- Biases ---

template <class T>
__global__ void add_row_kernel(int64_t count, int64_t columns, const T* row, T* data) {
  const int64_t i = item_of_thread();
  if (i < count) data[i] = rounded<T>(to_float(data[i]) + to_float(row[i % columns]));
}

/// Block b adds rows b, b + gridDim.x, ...
template <class T>
__global__ void column_sums_kernel(int64_t rows, int64_t columns, const T* x, float* partial) {
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    float sum = 0;
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) sum += to_float(x[r * columns + i]);
    partial[blockIdx.x * columns + i] = sum;
  }
}

/// 32 columns per block. Thread (column, chain) adds every 32nd row; then the chains are added as a
/// tree.
template <class T>
__global__ void gamma_gradient_kernel(int64_t partials, int64_t C, const float* partial, T* grad) {
  __shared__ float chains[32][32];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const unsigned chain = threadIdx.y;
  float sum = 0;
  if (column < C)
    for (int64_t p = chain; p < partials; p += 32) sum += partial[p * C + column];
  chains[chain][threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = 16; half > 0; half /= 2) {
    if (chain < half) chains[chain][threadIdx.x] += chains[chain + half][threadIdx.x];
    __syncthreads();
  }
  if (chain == 0 && column < C) grad[column] = rounded<T>(chains[0][threadIdx.x]);
}

// --- Element by element: n elements per thread ---

template <class T, class A>
__global__ void add_kernel(int64_t vectors, const T* a, const T* b, T* out) {
  const int64_t j = item_of_thread();
  if (j >= vectors) return;
  float v[A::n], w[A::n];
  A::load(a + j * A::n, v);
  A::load(b + j * A::n, w);
  for (int k = 0; k < A::n; ++k) v[k] += w[k];
  A::store(out + j * A::n, v);
}

/// The elements of one thread: [i, i + n) of `hidden` in row `row`.
template <class A>
struct Place {
  __device__ Place(int64_t item, int64_t hidden)
      : row(item / (hidden / A::n)), i(item % (hidden / A::n) * A::n) {}
  int64_t row, i;
};

template <class T, class A>
__global__ void swiglu_kernel(int64_t items, int64_t hidden, const T* gate_up, T* act) {
  const int64_t item = item_of_thread();
  if (item >= items) return;
  const Place<A> at(item, hidden);
  float gate[A::n], up[A::n];
  A::load(gate_up + at.row * 2 * hidden + at.i, gate);
  A::load(gate_up + at.row * 2 * hidden + hidden + at.i, up);
  for (int k = 0; k < A::n; ++k) up[k] *= gate[k] * (1.0f / (1.0f + expf(-gate[k])));
  A::store(act + at.row * hidden + at.i, up);
}

template <class T, class A>
__global__ void swiglu_backward_kernel(int64_t items, int64_t hidden, const T* gate_up,
                                       const T* dact, T* dgate_up, T* act) {
  const int64_t item = item_of_thread();
  if (item >= items) return;
  const Place<A> at(item, hidden);
  const int64_t gate_at = at.row * 2 * hidden + at.i, act_at = at.row * hidden + at.i;
  float gate[A::n], up[A::n], d[A::n];
  A::load(gate_up + gate_at, gate);
  A::load(gate_up + gate_at + hidden, up);
  A::load(dact + act_at, d);
  for (int k = 0; k < A::n; ++k) {
    const float s = 1.0f / (1.0f + expf(-gate[k])), silu = gate[k] * s;
    const float dgate = d[k] * up[k] * (s + silu * (1.0f - s)), dup = d[k] * silu;
    d[k] = silu * up[k];
    gate[k] = dgate;
    up[k] = dup;
  }
  A::store(dgate_up + gate_at, gate);
  A::store(dgate_up + gate_at + hidden, up);
  A::store(act + act_at, d);
}

}  // namespace

template <class T>
cudaError_t rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* gamma,
                     float eps, T* out) {
  return launch_rms_norm<T, false>(stream, rows, C, x, nullptr, gamma, eps, nullptr, out);
}

template <class T>
cudaError_t add_rms_norm(cudaStream_t stream, int64_t rows, int64_t C, const T* x, const T* delta,
                         const T* gamma, float eps, T* sum, T* out) {
  return launch_rms_norm<T, true>(stream, rows, C, x, delta, gamma, eps, sum, out);
}

template <class T>
cudaError_t rms_norm_backward(cudaStream_t stream, int64_t rows, int64_t C, const T* x,
                              const T* gamma, float eps, const T* dy, const T* residual, T* dx,
                              T* normed, float* partial) {
  if (rows == 0) return cudaSuccess;
  constexpr int64_t kWarpElements = 32 * Packed<T>::n;
  auto launch = launch_rms_norm_backward<T, Single<T>>;
  if (packable<T>(C, x, gamma, dy, residual, dx, normed))
    launch = C <= 4 * kWarpElements   ? launch_rms_norm_backward_warps<T, 4>
             : C <= 8 * kWarpElements ? launch_rms_norm_backward_warps<T, 8>
                                      : launch_rms_norm_backward<T, Packed<T>>;
  return launch(stream, rows, C, x, gamma, eps, dy, residual, dx, normed, partial);
}

template <class T>
cudaError_t norm_add(cudaStream_t stream, int64_t rows, int64_t C, const T* y, const T* gamma,
                     float eps, const T* x, T* sum) {
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(rows);
  if (packable<T>(C, y, gamma, x, sum))
    return gpu_launch({stream, grid, threads_for(C, Packed<T>::n, 512)},
                      norm_add_kernel<T, Packed<T>>, C, y, gamma, eps, x, sum);
  return gpu_launch({stream, grid, threads_for(C, 1, 512)}, norm_add_kernel<T, Single<T>>, C, y,
                    gamma, eps, x, sum);
}

template <class T>
cudaError_t norm_pieces(cudaStream_t stream, int64_t rows, int64_t pieces, int64_t width,
                        const T* gamma, float eps, T* data, int64_t ld, T* before,
                        int64_t ld_before) {
  if (rows * pieces == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(rows * pieces);
  constexpr int n = Packed<T>::n;
  if (packable<T>(width, gamma, data, before) && ld % n == 0 && ld_before % n == 0)
    return gpu_launch({stream, grid, threads_for(width, n, 512)}, norm_pieces_kernel<T, Packed<T>>,
                      pieces, width, gamma, eps, data, ld, before, ld_before);
  return gpu_launch({stream, grid, threads_for(width, 1, 512)}, norm_pieces_kernel<T, Single<T>>,
                    pieces, width, gamma, eps, data, ld, before, ld_before);
}

template <class T>
cudaError_t norm_pieces_backward(cudaStream_t stream, int64_t rows, int64_t pieces, int64_t width,
                                 const T* before, int64_t ld_before, const T* gamma, float eps,
                                 T* d, int64_t ld, float* partial) {
  const int64_t items = rows * pieces;
  if (items == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(gamma_partials(items));
  const size_t shared = static_cast<size_t>(width) * sizeof(float);
  constexpr int n = Packed<T>::n;
  if (packable<T>(width, gamma, d, before) && ld % n == 0 && ld_before % n == 0)
    return gpu_launch({stream, grid, threads_for(width, n, 256), shared},
                      norm_pieces_backward_kernel<T, Packed<T>>, items, pieces, width, before,
                      ld_before, gamma, eps, d, ld, partial);
  return gpu_launch({stream, grid, threads_for(width, 1, 256), shared},
                    norm_pieces_backward_kernel<T, Single<T>>, items, pieces, width, before,
                    ld_before, gamma, eps, d, ld, partial);
}

template <class T>
cudaError_t add_row(cudaStream_t stream, int64_t rows, int64_t columns, const T* row, T* data) {
  const int64_t count = rows * columns;
  if (count == 0) return cudaSuccess;
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, add_row_kernel<T>, count,
                    columns, row, data);
}

template <class T>
cudaError_t column_sums(cudaStream_t stream, int64_t rows, int64_t columns, const T* x,
                        float* partial) {
  if (rows == 0) return cudaSuccess;
  return gpu_launch({stream, static_cast<unsigned>(gamma_partials(rows)), kThreads},
                    column_sums_kernel<T>, rows, columns, x, partial);
}

template <class T>
cudaError_t gamma_gradient(cudaStream_t stream, int64_t partials, int64_t C, const float* partial,
                           T* grad) {
  return gpu_launch({stream, blocks_for(C, 32), dim3(32, 32)}, gamma_gradient_kernel<T>, partials,
                    C, partial, grad);
}

template <class T>
cudaError_t add(cudaStream_t stream, int64_t count, const T* a, const T* b, T* out) {
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(count, a, b, out))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads}, add_kernel<T, Packed<T>>,
                      count / n, a, b, out);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, add_kernel<T, Single<T>>,
                    count, a, b, out);
}

template <class T>
cudaError_t swiglu(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up, T* act) {
  const int64_t count = rows * hidden;
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(hidden, gate_up, act))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      swiglu_kernel<T, Packed<T>>, count / n, hidden, gate_up, act);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads}, swiglu_kernel<T, Single<T>>,
                    count, hidden, gate_up, act);
}

template <class T>
cudaError_t swiglu_backward(cudaStream_t stream, int64_t rows, int64_t hidden, const T* gate_up,
                            const T* dact, T* dgate_up, T* act) {
  const int64_t count = rows * hidden;
  if (count == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(hidden, gate_up, dact, dgate_up, act))
    return gpu_launch({stream, blocks_for(count / n, kThreads), kThreads},
                      swiglu_backward_kernel<T, Packed<T>>, count / n, hidden, gate_up, dact,
                      dgate_up, act);
  return gpu_launch({stream, blocks_for(count, kThreads), kThreads},
                    swiglu_backward_kernel<T, Single<T>>, count, hidden, gate_up, dact, dgate_up,
                    act);
}

#define SS_INSTANTIATE(T)                                                                         \
  template cudaError_t rms_norm(cudaStream_t, int64_t, int64_t, const T*, const T*, float, T*);   \
  template cudaError_t add_rms_norm(cudaStream_t, int64_t, int64_t, const T*, const T*, const T*, \
                                    float, T*, T*);                                               \
  template cudaError_t rms_norm_backward(cudaStream_t, int64_t, int64_t, const T*, const T*,      \
                                         float, const T*, const T*, T*, T*, float*);              \
  template cudaError_t gamma_gradient(cudaStream_t, int64_t, int64_t, const float*, T*);          \
  template cudaError_t norm_add(cudaStream_t, int64_t, int64_t, const T*, const T*, float,        \
                                const T*, T*);                                                    \
  template cudaError_t norm_pieces(cudaStream_t, int64_t, int64_t, int64_t, const T*, float, T*,  \
                                   int64_t, T*, int64_t);                                         \
  template cudaError_t norm_pieces_backward(cudaStream_t, int64_t, int64_t, int64_t, const T*,    \
                                            int64_t, const T*, float, T*, int64_t, float*);       \
  template cudaError_t add_row(cudaStream_t, int64_t, int64_t, const T*, T*);                     \
  template cudaError_t column_sums(cudaStream_t, int64_t, int64_t, const T*, float*);             \
  template cudaError_t add(cudaStream_t, int64_t, const T*, const T*, T*);                        \
  template cudaError_t swiglu(cudaStream_t, int64_t, int64_t, const T*, T*);                      \
  template cudaError_t swiglu_backward(cudaStream_t, int64_t, int64_t, const T*, const T*, T*, T*);
SS_INSTANTIATE(float)
SS_INSTANTIATE(Bf16)

}  // namespace simplescale::cuda
