// RoPE, arXiv 2104.09864: rotation in place before attention, and back after its backward pass,
// where dq, dk and dv are also gathered into one tensor. Shapes: kernels.hpp.
#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

/// The n pairs of one thread: elements [i, i + n) of each half of one head of one row.
template <class A>
struct Pairs {
  __device__ Pairs(int64_t item, int64_t heads, int64_t half) {
    const int64_t vectors = half / A::n;
    i = item % vectors * A::n;
    head = item / vectors % heads;
    row = item / vectors / heads;
  }
  int64_t row, head, i;
};

/// sign: 1 rotates, -1 rotates back.
template <int n>
__device__ void rotate(const float* cosine, const float* sine, float sign, float (&first)[n],
                       float (&second)[n]) {
  float c[n], s[n];
  load_elements<n>(cosine, c);
  load_elements<n>(sine, s);
  for (int k = 0; k < n; ++k) {
    const float a = first[k], b = second[k];
    first[k] = a * c[k] - sign * b * s[k];
    second[k] = b * c[k] + sign * a * s[k];
  }
}

template <class T, class A>
__global__ void rope_kernel(int64_t items, int64_t heads, int64_t half, int64_t block_size,
                            const float* cosine, const float* sine, T* data, int64_t ld) {
  const int64_t item = item_of_thread();
  if (item >= items) return;
  const Pairs<A> at(item, heads, half);
  T* place = data + at.row * ld + at.head * 2 * half + at.i;
  const int64_t angle = at.row % block_size * half + at.i;
  float first[A::n], second[A::n];
  A::load(place, first);
  A::load(place + half, second);
  rotate<A::n>(cosine + angle, sine + angle, 1.0f, first, second);
  A::store(place, first);
  A::store(place + half, second);
}

template <class T, class A>
__global__ void rope_backward_kernel(int64_t items, int64_t block_size, int64_t heads,
                                     int64_t kv_heads, int64_t half, const float* cosine,
                                     const float* sine, HeadView<T> dq, HeadView<T> dk,
                                     HeadView<T> dv, T* dqkv) {
  const int64_t item = item_of_thread();
  if (item >= items) return;
  const int64_t all_heads = heads + 2 * kv_heads;
  const Pairs<A> at(item, all_heads, half);
  const bool is_q = at.head < heads, is_v = at.head >= heads + kv_heads;
  const HeadView<T> view = is_q ? dq : is_v ? dv : dk;
  const int64_t head = is_q ? at.head : is_v ? at.head - heads - kv_heads : at.head - heads;
  const int64_t batch = at.row / block_size, token = at.row % block_size;
  const T* from = view.data + batch * view.batch + head * view.head + token * view.token + at.i;
  float first[A::n], second[A::n];
  A::load(from, first);
  A::load(from + half, second);
  const int64_t angle = token * half + at.i;
  if (!is_v) rotate<A::n>(cosine + angle, sine + angle, -1.0f, first, second);
  T* to = dqkv + (at.row * all_heads + at.head) * 2 * half + at.i;
  A::store(to, first);
  A::store(to + half, second);
}

template <class T>
bool packable_view(const HeadView<T>& v) {
  constexpr int n = Packed<T>::n;
  return packable<T>(n, v.data) && v.batch % n == 0 && v.head % n == 0 && v.token % n == 0;
}

}  // namespace

template <class T>
cudaError_t rope(cudaStream_t stream, int64_t rows, int64_t heads, int64_t D, int64_t block_size,
                 const float* cosine, const float* sine, T* data, int64_t ld) {
  const int64_t half = D / 2, pairs = rows * heads * half;
  if (pairs == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(half, data, cosine, sine) && ld % n == 0)
    return gpu_launch({stream, blocks_for(pairs / n, kThreads), kThreads},
                      rope_kernel<T, Packed<T>>, pairs / n, heads, half, block_size, cosine, sine,
                      data, ld);
  return gpu_launch({stream, blocks_for(pairs, kThreads), kThreads}, rope_kernel<T, Single<T>>,
                    pairs, heads, half, block_size, cosine, sine, data, ld);
}

template <class T>
cudaError_t rope_backward(cudaStream_t stream, int64_t batch, int64_t block_size, int64_t heads,
                          int64_t kv_heads, int64_t D, const float* cosine, const float* sine,
                          HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, T* dqkv) {
  const int64_t half = D / 2, pairs = batch * block_size * (heads + 2 * kv_heads) * half;
  if (pairs == 0) return cudaSuccess;
  constexpr int n = Packed<T>::n;
  if (packable<T>(half, dqkv, cosine, sine) && packable_view(dq) && packable_view(dk) &&
      packable_view(dv))
    return gpu_launch({stream, blocks_for(pairs / n, kThreads), kThreads},
                      rope_backward_kernel<T, Packed<T>>, pairs / n, block_size, heads, kv_heads,
                      half, cosine, sine, dq, dk, dv, dqkv);
  return gpu_launch({stream, blocks_for(pairs, kThreads), kThreads},
                    rope_backward_kernel<T, Single<T>>, pairs, block_size, heads, kv_heads, half,
                    cosine, sine, dq, dk, dv, dqkv);
}

#define SS_INSTANTIATE(T)                                                                       \
  template cudaError_t rope(cudaStream_t, int64_t, int64_t, int64_t, int64_t, const float*,     \
                            const float*, T*, int64_t);                                         \
  template cudaError_t rope_backward(cudaStream_t, int64_t, int64_t, int64_t, int64_t, int64_t, \
                                     const float*, const float*, HeadView<T>, HeadView<T>,      \
                                     HeadView<T>, T*);
SS_INSTANTIATE(float)
SS_INSTANTIATE(Bf16)

}  // namespace simplescale::cuda
