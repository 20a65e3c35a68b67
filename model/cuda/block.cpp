// A transformer block of the CUDA backend, forward and backward.
#include <utility>

#include "model/cuda/check.hpp"
#include "model/cuda/cuda_backend.hpp"

namespace simplescale::cuda {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CudaBackend<T>::forward_block(int layer, const void* params) {
  forward(layer, static_cast<const T*>(params), false);
}

template <class T>
void CudaBackend<T>::forward(int layer, const T* params, bool recompute) {
  SS_ASSERT(layer >= 0 && layer < shape_.layers);
  const Block<const T> p(params, *this);
  Saved& s = saved(layer);
  const T* input = x(layer);
  SS_CUDA(rms_norm(stream_, N_, C_, input, p.norm1, eps_, normed_));
  aten_.gemm(kNo, kYes, N_, Q_, C_, normed_, p.qkv, s.qkv);
  SS_CUDA(rope(stream_, N_, shape_.heads + shape_.kv_heads, D_, T_, cosine_, sine_, s.qkv, Q_));
  s.attended.reset();  // frees its memory for the next call
  s.attended = aten_.attention(s.qkv);
  aten_.gemm(kNo, kYes, N_, C_, C_, aten_.attended(*s.attended), p.o, product_);
  SS_CUDA(add_rms_norm<T>(stream_, N_, C_, input, product_, p.norm2, eps_, s.middle, normed_));
  aten_.gemm(kNo, kYes, N_, 2 * F_, C_, normed_, p.gate_up, s.gate_up);
  held_layer_ = layer;
  if (recompute) return;
  SS_CUDA(swiglu<T>(stream_, N_, F_, s.gate_up, act_));
  aten_.gemm(kNo, kYes, N_, C_, F_, act_, p.down, product_);
  SS_CUDA(add<T>(stream_, N_ * C_, s.middle, product_, x(layer + 1)));
}

template <class T>
void CudaBackend<T>::weight_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* x,
                                     T* grad, bool accumulate) {
  aten_.gemm(kYes, kNo, out, in, rows, dy, x, grad, accumulate);
}

template <class T>
void CudaBackend<T>::norm_backward(const T* x, const T* gamma, const T* dy, const T* residual,
                                   T* dx, T* grad) {
  SS_CUDA(rms_norm_backward(stream_, N_, C_, x, gamma, eps_, dy, residual, dx, normed_, d_gamma_));
  SS_CUDA(gamma_gradient(stream_, gamma_partials(N_), C_, d_gamma_, grad));
}

template <class T>
void CudaBackend<T>::backward_block(int layer, const void* params, void* grad) {
  SS_ASSERT(options_.training);
  if (saved_.size() == 1 && held_layer_ != layer)
    forward(layer, static_cast<const T*>(params), true);
  const Block<const T> p(static_cast<const T*>(params), *this);
  const Block<T> g(static_cast<T*>(grad), *this);
  const Saved& s = saved(layer);

  // The MLP. act_ holds d act first, then act.
  aten_.gemm(kNo, kNo, N_, F_, C_, d_out_, p.down, act_);
  SS_CUDA(swiglu_backward<T>(stream_, N_, F_, s.gate_up, act_, d_gate_up_, act_));
  weight_gradient(N_, C_, F_, d_out_, act_, g.down);
  aten_.gemm(kNo, kNo, N_, C_, 2 * F_, d_gate_up_, p.gate_up, product_);
  norm_backward(s.middle, p.norm2, product_, d_out_, d_middle_, g.norm2);
  weight_gradient(N_, 2 * F_, C_, d_gate_up_, normed_, g.gate_up);

  // Attention.
  aten_.gemm(kNo, kNo, N_, C_, C_, d_middle_, p.o, product_);
  weight_gradient(N_, C_, C_, d_middle_, static_cast<const T*>(aten_.attended(*s.attended)), g.o);
  const auto d = aten_.attention_backward<T>(s.qkv, *s.attended, product_);
  SS_CUDA(rope_backward<T>(stream_, B_, T_, shape_.heads, shape_.kv_heads, D_, cosine_, sine_, d.dq,
                           d.dk, d.dv, d_qkv_));
  aten_.gemm(kNo, kNo, N_, C_, Q_, d_qkv_, p.qkv, product_);
  norm_backward(x(layer), p.norm1, product_, d_middle_, d_in_, g.norm1);
  weight_gradient(N_, Q_, C_, d_qkv_, normed_, g.qkv);
  std::swap(d_out_, d_in_);
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace simplescale::cuda
