// A transformer block of the CPU backend, forward and backward.
#include <algorithm>

#include "model/cpu/cpu_backend.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CpuBackend<T>::forward_block(int layer, const void* params) {
  forward(layer, static_cast<const T*>(params), false);
}

/// task: sample * kv_heads + key/value head.
template <class T>
AttentionView<T> CpuBackend<T>::attention_view(const Saved& s, int64_t task) const {
  const int64_t sample = task / shape_.kv_heads, j = task % shape_.kv_heads;
  const int64_t head = j * attention_.group;
  T* row = s.qkv + sample * T_ * Q_;
  return {row + head * D_, row + C_ + j * D_, row + C_ + K_ + j * D_,
          s.attended + sample * T_ * C_ + head * D_, s.lse + (sample * shape_.heads + head) * T_};
}

template <class T>
Weight<T> CpuBackend<T>::weight(const T* data, int64_t out, int64_t in, Transpose transpose,
                                int slot) const {
  if (transpose == kYes) return {data, in, out, in, kYes, packed_[slot]};
  return {data, out, in, in, kNo, packed_[slot]};
}

template <class T>
void CpuBackend<T>::pack_all(std::span<const Weight<T>> weights) {
  if constexpr (std::is_same_v<T, float>)
    pool_.run(int64_t(weights.size()), [&](int64_t task, int) { pack(weights[size_t(task)]); });
}

template <class T>
typename CpuBackend<T>::Factors CpuBackend<T>::factors(const Block<const T>& p,
                                                       Transpose transpose) {
  const Weight<T> all[] = {weight(p.gate_up, 2 * F_, C_, transpose, 0),
                           weight(p.down, C_, F_, transpose, 1),
                           weight(p.qkv, Q_, C_, transpose, 2), weight(p.o, C_, C_, transpose, 3)};
  pack_all(all);
  return {.qkv = all[2], .o = all[3], .gate_up = all[0], .down = all[1]};
}

template <class T>
void CpuBackend<T>::forward(int layer, const T* params, bool recompute) {
  SS_ASSERT(layer >= 0 && layer < shape_.layers);
  const Block<const T> p(params, *this);
  const Factors f = factors(p, kYes);
  const Saved& s = saved(layer);
  const T* input = x(layer);
  T* output = recompute ? nullptr : x(layer + 1);
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) { rms_norm_and_qkv(p, f, input, s, c, w); });
  pool_.run(B_ * shape_.kv_heads, [&](int64_t task, int worker) {
    attention_forward(attention_, attention_view(s, task), workspaces_[size_t(worker)].attention);
  });
  for_chunks(N_, kRows,
             [&](Chunk c, Workspace& w) { output_and_mlp(p, f, input, s, output, c, w); });
  held_layer_ = layer;
}

/// Rows c of s.qkv, rotated. x: (N, C), the block's input.
template <class T>
void CpuBackend<T>::rms_norm_and_qkv(const Block<const T>& p, const Factors& f, const T* x,
                                     const Saved& s, Chunk c, Workspace& w) {
  kernel_.rms_norm(c.rows, C_, x + c.first * C_, p.norm1, eps_, w.normed);
  T* qkv = s.qkv + c.first * Q_;
  float* product = direct(qkv, w.wide);
  gemm(c.rows, w.normed, C_, f.qkv, product, Q_);
  kernel_.rope(c.rows, shape_.heads + shape_.kv_heads, D_, c.first, T_, cosine_, sine_, false,
               product, Q_, qkv, Q_);
  if (!std::is_same_v<T, float>)
    kernel_.store(c.rows, K_, product + C_ + K_, Q_, qkv + C_ + K_, Q_);
}

/// Rows c of s.middle, s.gate_up and next: (N, C), the block's output; null: not computed.
template <class T>
void CpuBackend<T>::output_and_mlp(const Block<const T>& p, const Factors& f, const T* x,
                                   const Saved& s, T* next, Chunk c, Workspace& w) {
  const int64_t at = c.first * C_;
  gemm(c.rows, s.attended + at, C_, f.o, w.narrow, C_);
  kernel_.add_rms_norm(c.rows, C_, x + at, w.narrow, p.norm2, eps_, s.middle + at, w.normed);
  T* gate_up = s.gate_up + c.first * 2 * F_;
  float* product = direct(gate_up, w.wide);
  gemm(c.rows, w.normed, C_, f.gate_up, product, 2 * F_);
  if (!next) {
    if (!std::is_same_v<T, float>) kernel_.store(c.rows, 2 * F_, product, 2 * F_, gate_up, 2 * F_);
    return;
  }
  kernel_.swiglu(c.rows, F_, product, gate_up, w.act);
  gemm(c.rows, w.act, F_, f.down, w.narrow, C_);
  kernel_.add(c.rows * C_, s.middle + at, w.narrow, next + at);
}

/// Rows c: from d_out_ to d_middle_ and d_attended_, through the MLP and the output projection.
/// Writes act_, d_gate_up_ and normed2_ for the weights' gradients and d_gamma2_ for the norm's.
template <class T>
void CpuBackend<T>::backward_mlp(const Block<const T>& p, const Factors& f, const Saved& s, Chunk c,
                                 Workspace& w) {
  const int64_t at = c.first * C_;
  T* act = act_ + c.first * F_;
  T* d_gate_up = d_gate_up_ + c.first * 2 * F_;
  float* d_act = direct(act, w.wide);
  gemm(c.rows, d_out_ + at, C_, f.down, d_act, F_);
  kernel_.swiglu_backward(c.rows, F_, s.gate_up + c.first * 2 * F_, d_act, d_gate_up, act);
  gemm(c.rows, d_gate_up, 2 * F_, f.gate_up, w.narrow, C_);
  kernel_.rms_norm_backward(c.rows, C_, s.middle + at, p.norm2, eps_, w.narrow, d_out_ + at,
                            d_middle_ + at, normed2_ + at, d_gamma2_ + c.first / kRows * C_);
  float* d_attended = direct(d_attended_ + at, w.narrow);
  gemm(c.rows, d_middle_ + at, C_, f.o, d_attended, C_);
  if (!std::is_same_v<T, float>) kernel_.store(c.rows, C_, d_attended, C_, d_attended_ + at, C_);
}

template <class T>
void CpuBackend<T>::backward_block(int layer, const void* params, void* grad) {
  SS_ASSERT(options_.training);
  if (saved_.size() == 1 && held_layer_ != layer)
    forward(layer, static_cast<const T*>(params), true);
  const Block<const T> p(static_cast<const T*>(params), *this);
  const Factors f = factors(p, kNo);
  const Block<T> g(static_cast<T*>(grad), *this);
  const Saved& s = saved(layer);
  const T* input = x(layer);

  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) { backward_mlp(p, f, s, c, w); });
  pool_.run(B_ * shape_.kv_heads, [&](int64_t task, int worker) {
    const AttentionView<T> at = attention_view(s, task);
    const AttentionGradient<T> gradient{d_attended_ + (at.out - s.attended),
                                        d_qkv_ + (at.q - s.qkv),
                                        d_qkv_ + (at.k - s.qkv),
                                        d_qkv_ + (at.v - s.qkv),
                                        cosine_,
                                        sine_};
    attention_backward(attention_, at, gradient, workspaces_[size_t(worker)].attention);
  });
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    const int64_t at = c.first * C_;
    gemm(c.rows, d_qkv_ + c.first * Q_, Q_, f.qkv, w.narrow, C_);
    kernel_.rms_norm_backward(c.rows, C_, input + at, p.norm1, eps_, w.narrow, d_middle_ + at,
                              d_in_ + at, normed1_ + at, d_gamma1_ + c.first / kRows * C_);
  });
  const WeightGradient gradients[] = {{2 * F_, C_, d_gate_up_, 2 * F_, normed2_, g.gate_up},
                                      {C_, F_, d_out_, C_, act_, g.down},
                                      {Q_, C_, d_qkv_, Q_, normed1_, g.qkv},
                                      {C_, C_, d_middle_, C_, s.attended, g.o}};
  weight_gradients(N_, gradients, true, true, nullptr);
  const int64_t chunks = (N_ + kRows - 1) / kRows;
  gamma_gradient(d_gamma1_, chunks, g.norm1);
  gamma_gradient(d_gamma2_, chunks, g.norm2);
  std::swap(d_out_, d_in_);
}

/// Adds the part of `rows` tokens to each gradient. first: these are the first tokens of the
/// micro-batch. last: these are the last ones, and the gradient is rounded to T. sums: (out, in)
/// fp32, keeps the sum of a single gradient between calls; null if first and last.
template <class T>
void CpuBackend<T>::weight_gradients(int64_t rows, std::span<const WeightGradient> gradients,
                                     bool first, bool last, float* sums) {
  int64_t tasks = 0;
  for (const WeightGradient& g : gradients) tasks += g.pieces();
  pool_.run(tasks, [&](int64_t task, int worker) {
    const WeightGradient* g = gradients.data();
    for (; task >= g->pieces(); ++g) task -= g->pieces();
    const int64_t begin = task * g->piece_rows(), count = std::min(g->piece_rows(), g->out - begin);
    if (count <= 0) return;
    T* grad = g->grad + begin * g->in;
    float* product = sums ? sums + begin * g->in : workspaces_[size_t(worker)].wide;
    if (std::is_same_v<T, float>) product = direct(grad, product);
    for (int64_t row = 0; row < rows; row += kWeightTokens)
      gemm(kYes, kNo, count, g->in, std::min(kWeightTokens, rows - row),
           g->dy + row * g->ld_dy + begin, g->ld_dy, g->x + row * g->in, g->in,
           first && row == 0 ? 0 : 1, product, g->in);
    if (!std::is_same_v<T, float> && last) kernel_.store(count, g->in, product, g->in, grad, g->in);
  });
}

/// grad (C) = the sum of partial (chunks, C) over its rows.
template <class T>
void CpuBackend<T>::gamma_gradient(const float* partial, int64_t chunks, T* grad) {
  float* sum = workspaces_[0].narrow;
  std::copy_n(partial, C_, sum);
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t i = 0; i < C_; ++i) sum[i] += partial[k * C_ + i];
  kernel_.store(1, C_, sum, C_, grad, C_);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
