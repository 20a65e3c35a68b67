// A transformer block of the CUDA backend, forward and backward.
#include <utility>

#include "model/cuda/check.hpp"
#include "model/cuda/cuda_backend.hpp"

namespace simplescale::cuda {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CudaBackend<T>::forward_block(int frame, int layer, const void* params) {
  use(frame);
  forward(layer, static_cast<const T*>(params), false);
}

// --- The products, with BackendOptions::fp8 in fp8 ---

template <class T>
void CudaBackend<T>::product(int64_t rows, int64_t out, int64_t in, const T* x, const T* w, T* to) {
  if (!options_.fp8) return gemm_.run(kNo, kYes, rows, out, in, x, w, to);
  SS_CUDA(to_fp8(stream_, Fp8Kind::activation, rows, in, x, fp8_left_, {}));
  SS_CUDA(to_fp8(stream_, Fp8Kind::weight, out, in, w, fp8_right_, {}));
  gemm_.run_fp8(rows, out, in, {Fp8Kind::activation, fp8_left_}, {Fp8Kind::weight, fp8_right_}, to);
}

template <class T>
void CudaBackend<T>::input_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* w,
                                    T* dx) {
  if (!options_.fp8) return gemm_.run(kNo, kNo, rows, in, out, dy, w, dx);
  SS_CUDA(to_fp8(stream_, Fp8Kind::gradient, rows, out, dy, fp8_left_, fp8_turned_));
  SS_CUDA(to_fp8(stream_, Fp8Kind::weight, out, in, w, {}, fp8_right_));
  gemm_.run_fp8(rows, in, out, {Fp8Kind::gradient, fp8_left_}, {Fp8Kind::weight, fp8_right_}, dx);
  turned_ = dy;
}

template <class T>
void CudaBackend<T>::weight_gradient(int64_t rows, int64_t out, int64_t in, const T* dy, const T* x,
                                     T* grad, bool accumulate) {
  if (!options_.fp8) return gemm_.run(kYes, kNo, out, in, rows, dy, x, grad, accumulate);
  SS_ASSERT(turned_ == dy);
  SS_CUDA(to_fp8(stream_, Fp8Kind::activation, rows, in, x, {}, fp8_right_));
  gemm_.run_fp8(out, in, rows, {Fp8Kind::gradient, fp8_turned_}, {Fp8Kind::activation, fp8_right_},
                grad, accumulate);
}

// --- The block ---

template <class T>
void CudaBackend<T>::norm_of_input(int unit, const T* gamma) {
  T* const input = x(unit);
  if (std::exchange(sum_due_of_, -1) >= 0)
    SS_CUDA(add_rms_norm<T>(stream_, N_, C_, saved(unit - 1).middle, product_, gamma, eps_, input,
                            normed_));
  else
    SS_CUDA(rms_norm<T>(stream_, N_, C_, input, gamma, eps_, normed_));
}

template <class T>
void CudaBackend<T>::project_qkv(int layer, const BlockParameters<const T>& p, Saved& s) {
  if (!post_norm()) norm_of_input(layer, p.norm1);
  product(N_, Q_, C_, post_norm() ? x(layer) : normed_, p.qkv, s.qkv);
  if (shape_.qkv_bias) SS_CUDA(add_row(stream_, N_, Q_, p.bias, s.qkv));
  if (has_qk_norm()) {
    const QkPieces q = qk_pieces(A_), k = qk_pieces(K_);
    SS_CUDA(norm_pieces(stream_, N_, q.pieces, q.width, p.q_norm, eps_, s.qkv, Q_, s.qk, A_ + K_));
    SS_CUDA(norm_pieces(stream_, N_, k.pieces, k.width, p.k_norm, eps_, s.qkv + A_, Q_, s.qk + A_,
                        A_ + K_));
  }
  SS_CUDA(rope(stream_, N_, shape_.heads + shape_.kv_heads, D_, T_, cosine_, sine_, s.qkv, Q_));
}

template <class T>
void CudaBackend<T>::forward(int layer, const T* params, bool recompute) {
  SS_ASSERT(layer >= 0 && layer < shape_.layers);
  const BlockParameters<const T> p(params, shape_, layer);
  Saved& s = saved(layer);
  const T* input = x(layer);
  project_qkv(layer, p, s);
  s.attended.reset();  // frees its memory for the next call
  s.attended = aten_.attention(s.qkv);
  T* attention_out = post_norm() ? s.attention_out : product_;
  product(N_, C_, A_, static_cast<const T*>(aten_.attended(*s.attended)), p.o, attention_out);
  if (post_norm())
    SS_CUDA(norm_add<T>(stream_, N_, C_, attention_out, p.norm1, eps_, input, s.middle));
  else
    SS_CUDA(
        add_rms_norm<T>(stream_, N_, C_, input, attention_out, p.norm2, eps_, s.middle, normed_));
  hold(layer);
  T* mlp_out = post_norm() ? s.mlp_out : product_;
  const bool output = !recompute || post_norm();
  if (output || mlp_rows_ == N_)
    for_each_mlp_part([&](int64_t begin, int64_t rows) {
      mlp_forward(p, s, post_norm() ? s.middle : normed_, begin, rows, output);
      if (output) product(rows, C_, F_, act_, p.down, mlp_out + begin * C_);
    });
  if (recompute) return;
  await_room_for_output(layer);
  if (post_norm())
    SS_CUDA(norm_add<T>(stream_, N_, C_, mlp_out, p.norm2, eps_, s.middle, x(layer + 1)));
  else
    sum_due_of_ = layer;
  keep_input(layer);
}

// --- Inputs of blocks in host memory ---

template <class T>
T* CudaBackend<T>::input_out(int layer) {
  return static_cast<T*>(frame_->inputs_out.reserve(0)) + layer * N_ * C_;
}

template <class T>
void CudaBackend<T>::keep_input(int layer) {
  if (!inputs_in_host() || layer + 1 == shape_.layers) return;
  inputs_stream_.follow(stream_);
  SS_CUDA(cudaMemcpyAsync(input_out(layer), x(layer), static_cast<size_t>(N_ * C_) * sizeof(T),
                          cudaMemcpyDeviceToHost, inputs_stream_.get()));
}

template <class T>
void CudaBackend<T>::await_room_for_output(int layer) {
  if (inputs_in_host() && layer > 0) inputs_stream_.lead(stream_);
}

template <class T>
void CudaBackend<T>::fetch_inputs(int layer) {
  if (!inputs_in_host()) return;
  if (layer + 1 < shape_.layers) inputs_stream_.lead(stream_);
  if (layer == 0) return;
  inputs_stream_.follow(stream_);
  SS_CUDA(cudaMemcpyAsync(x(layer - 1), input_out(layer - 1),
                          static_cast<size_t>(N_ * C_) * sizeof(T), cudaMemcpyHostToDevice,
                          inputs_stream_.get()));
}

template <class T>
void CudaBackend<T>::mlp_forward(const BlockParameters<const T>& p, const Saved& s, const T* input,
                                 int64_t begin, int64_t rows, bool activate) {
  T* const gate_up = gate_up_of(s, begin);
  product(rows, 2 * F_, C_, input + begin * C_, p.gate_up, gate_up);
  if (activate) SS_CUDA(swiglu<T>(stream_, rows, F_, gate_up, act_));
}

/// With several parts of the MLP, gate and up are those of the last part unless they are kept:
/// backward_mlp() computes them again, part by part. It needs normed_ before it has all of product_.
template <class T>
void CudaBackend<T>::restore(int layer, const T* params) {
  const bool whole = mlp_rows_ == N_;
  if (whole && (keeps_gate_up() || holds(layer))) return;
  if (options_.recompute == Recompute::block && !holds(layer)) return forward(layer, params, true);
  const BlockParameters<const T> p(params, shape_, layer);
  const Saved& s = saved(layer);
  if (!post_norm()) SS_CUDA(rms_norm<T>(stream_, N_, C_, s.middle, p.norm2, eps_, normed_));
  if (whole) mlp_forward(p, s, post_norm() ? s.middle : normed_, 0, N_, false);
  hold(layer);
}

template <class T>
void CudaBackend<T>::norm_backward(const T* x, const T* gamma, const T* dy, const T* residual,
                                   T* dx, T* grad) {
  SS_CUDA(rms_norm_backward(stream_, N_, C_, x, gamma, eps_, dy, residual, dx, normed_, d_gamma_));
  SS_CUDA(gamma_gradient(stream_, gamma_partials(N_), C_, d_gamma_, grad));
}

/// With norms after the branches, d_in_ holds the gradient of the MLP's output meanwhile. act_
/// holds d act first, then act.
template <class T>
void CudaBackend<T>::backward_mlp(const BlockParameters<const T>& p, const BlockParameters<T>& g,
                                  const Saved& s) {
  const T* d_mlp = frame_->d_out;
  if (post_norm()) {
    norm_backward(s.mlp_out, p.norm2, frame_->d_out, nullptr, d_in_, g.norm2);
    d_mlp = d_in_;
  }
  const bool whole = mlp_rows_ == N_;
  const T* input = post_norm() ? s.middle : normed_;
  for_each_mlp_part([&](int64_t begin, int64_t rows) {
    const T* d = d_mlp + begin * C_;
    if (!whole && !keeps_gate_up()) mlp_forward(p, s, input, begin, rows, false);
    input_gradient(rows, C_, F_, d, p.down, act_);
    SS_CUDA(swiglu_backward<T>(stream_, rows, F_, gate_up_of(s, begin), act_, d_gate_up_, act_));
    weight_gradient(rows, C_, F_, d, act_, g.down, begin > 0);
    input_gradient(rows, 2 * F_, C_, d_gate_up_, p.gate_up, product_ + begin * C_);
    if (!whole)
      weight_gradient(rows, 2 * F_, C_, d_gate_up_, input + begin * C_, g.gate_up, begin > 0);
  });
  if (post_norm())
    SS_CUDA(add<T>(stream_, N_ * C_, frame_->d_out, product_, d_middle_));
  else
    norm_backward(s.middle, p.norm2, product_, frame_->d_out, d_middle_, g.norm2);
  // With one part norm_backward() computes normed_, so that restore() need not.
  if (whole) weight_gradient(N_, 2 * F_, C_, d_gate_up_, input, g.gate_up);
}

template <class T>
void CudaBackend<T>::backward_qk_norm_and_bias(const BlockParameters<const T>& p,
                                               const BlockParameters<T>& g, const Saved& s) {
  if (has_qk_norm()) {
    const int64_t ld = A_ + K_;
    const QkPieces q = qk_pieces(A_), k = qk_pieces(K_);
    SS_CUDA(norm_pieces_backward(stream_, N_, q.pieces, q.width, s.qk, ld, p.q_norm, eps_, d_qkv_,
                                 Q_, d_gamma_));
    SS_CUDA(gamma_gradient(stream_, gamma_partials(N_ * q.pieces), q.width, d_gamma_, g.q_norm));
    SS_CUDA(norm_pieces_backward(stream_, N_, k.pieces, k.width, s.qk + A_, ld, p.k_norm, eps_,
                                 d_qkv_ + A_, Q_, d_gamma_));
    SS_CUDA(gamma_gradient(stream_, gamma_partials(N_ * k.pieces), k.width, d_gamma_, g.k_norm));
  }
  if (!shape_.qkv_bias) return;
  SS_CUDA(column_sums(stream_, N_, Q_, d_qkv_, d_gamma_));
  SS_CUDA(gamma_gradient(stream_, gamma_partials(N_), Q_, d_gamma_, g.bias));
}

template <class T>
void CudaBackend<T>::backward_block(int frame, int layer, const void* params, void* grad) {
  SS_ASSERT(options_.training);
  use(frame);
  fetch_inputs(layer);
  restore(layer, static_cast<const T*>(params));
  const BlockParameters<const T> p(static_cast<const T*>(params), shape_, layer);
  const BlockParameters<T> g(static_cast<T*>(grad), shape_, layer);
  const Saved& s = saved(layer);
  const T* input = x(layer);
  backward_mlp(p, g, s);

  const T* d_attention = d_middle_;
  if (post_norm()) {
    norm_backward(s.attention_out, p.norm1, d_middle_, nullptr, d_in_, g.norm1);
    d_attention = d_in_;
  }
  input_gradient(N_, C_, A_, d_attention, p.o, product_);
  weight_gradient(N_, C_, A_, d_attention, static_cast<const T*>(aten_.attended(*s.attended)), g.o);
  const auto d = aten_.attention_backward<T>(s.qkv, *s.attended, product_);
  SS_CUDA(rope_backward<T>(stream_, B_, T_, shape_.heads, shape_.kv_heads, D_, cosine_, sine_, d.dq,
                           d.dk, d.dv, d_qkv_));
  backward_qk_norm_and_bias(p, g, s);
  input_gradient(N_, Q_, C_, d_qkv_, p.qkv, product_);
  if (post_norm())
    SS_CUDA(add<T>(stream_, N_ * C_, d_middle_, product_, d_in_));
  else
    norm_backward(input, p.norm1, product_, d_middle_, d_in_, g.norm1);
  weight_gradient(N_, Q_, C_, d_qkv_, post_norm() ? input : normed_, g.qkv);
  std::swap(frame_->d_out, d_in_);
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace simplescale::cuda
