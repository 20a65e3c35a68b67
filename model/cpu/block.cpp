// A transformer block of the CPU backend, forward and backward.
#include <algorithm>

#include "model/cpu/cpu_backend.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CpuBackend<T>::forward_block(int frame, int layer, const void* params) {
  use(frame, Pass::forward, layer);
  forward(layer, static_cast<const T*>(params), false);
}

/// A task takes a sample and a key/value head. RoPE rotates by the position in the sample: scores
/// depend on distances only, so within a document the start of the positions does not matter.
template <class T>
template <class Body>
void CpuBackend<T>::for_attention(const Saved& s, Body body) {
  const Documents& documents = frame_->documents;
  pool_.run(B_ * shape_.kv_heads, [&](int64_t task, int worker) {
    const int64_t sample = task / shape_.kv_heads, j = task % shape_.kv_heads;
    const int64_t head = j * attention_.group;
    const auto of = static_cast<size_t>(sample);
    for (int32_t d = documents.first[of]; d < documents.first[of + 1]; ++d) {
      const int64_t row = documents.begin[static_cast<size_t>(d)];
      const int64_t position = row - sample * T_;
      AttentionShape shape = attention_;
      shape.T = documents.begin[static_cast<size_t>(d) + 1] - row;
      if (const int32_t prompt = documents.prompt[static_cast<size_t>(d)]; prompt >= 0) {
        const int32_t* begin = &documents.begin[static_cast<size_t>(prompt)];
        shape.prompt = begin[1] - begin[0];
        shape.behind = row - begin[0];
      }
      T* qkv = s.qkv + row * Q_;
      // lse: the heads of the group, each with the document's tokens, document after document.
      float* lse = s.lse + (sample * shape_.heads + head) * T_ + position * attention_.group;
      const AttentionView<T> view{qkv + head * D_, qkv + A_ + j * D_, qkv + A_ + K_ + j * D_,
                                  s.attended + row * A_ + head * D_, lse};
      body(shape, view, position, worker);
    }
  });
}

template <class T>
template <class Body>
void CpuBackend<T>::for_positions(Chunk c, Body body) const {
  const Documents& documents = frame_->documents;
  if (!documents.prompts) return body(c.first, c.rows, c.first);
  const std::vector<int32_t>& begin = documents.begin;
  auto d = static_cast<size_t>(std::ranges::upper_bound(begin, c.first) - begin.begin()) - 1;
  for (int64_t row = c.first, end = 0; row < c.first + c.rows; row = end, ++d) {
    end = std::min<int64_t>(begin[d + 1], c.first + c.rows);
    const int32_t prompt = documents.prompt[d];
    const int64_t moved = prompt < 0 ? 0 : begin[d] - begin[static_cast<size_t>(prompt) + 1];
    body(row, end - row, row - moved);
  }
}

template <class T>
Weight<T> CpuBackend<T>::weight(const T* data, int64_t out, int64_t in, Transpose transpose,
                                int slot) const {
  float* const packed = packed_[transpose == kYes][slot].memory;
  if (transpose == kYes) return {data, in, out, in, kYes, packed};
  return {data, out, in, in, kNo, packed};
}

template <class T>
Weight<T> CpuBackend<T>::factor(const T* data, int64_t out, int64_t in, Transpose transpose,
                                int slot) {
  if (options_.fp8) {
    T* rounded = rounded_[slot];
    pool_.run((out + kFp8Block - 1) / kFp8Block, [&](int64_t task, int) {
      const int64_t first = task * kFp8Block;
      round_to_fp8(Fp8::e4m3, Fp8Blocks::square, std::min(kFp8Block, out - first), in,
                   data + first * in, in, rounded + first * in);
    });
    data = rounded;
  }
  return weight(data, out, in, transpose, slot);
}

template <class T>
void CpuBackend<T>::multiply(int64_t rows, const T* x, Fp8 format, const Weight<T>& f, float* to,
                             Workspace& w) {
  if (options_.fp8) {
    round_to_fp8(format, Fp8Blocks::row, rows, f.k, x, f.k, w.rounded);
    x = w.rounded;
  }
  gemm(rows, x, f.k, f, to, f.n);
}

/// Only the next frame's call of the same pass finds the parameters unchanged.
template <class T>
void CpuBackend<T>::use(int frame, Pass pass, int layer) {
  Frame* const next = &frames_[static_cast<size_t>(frame)];
  if (pass == Pass::other || pass_ != std::pair{pass, layer} || next <= frame_)
    for (auto& of_orientation : packed_)
      for (Packed& packed : of_orientation) packed.holds = nullptr;
  pass_ = {pass, layer};
  frame_ = next;
}

template <class T>
void CpuBackend<T>::pack_all(std::span<const Weight<T>> weights) {
  if constexpr (std::is_same_v<T, float>)
    pool_.run(int64_t(weights.size()), [&](int64_t task, int) {
      const Weight<T>& weight = weights[size_t(task)];
      const size_t orientation = weight.transpose == kYes;
      Packed& packed = packed_[orientation][task];
      if (packed.holds == weight.data || weight.n * weight.k == 0) return;
      pack(weight);
      packed.holds = weight.data;
      Packed& other = packed_[1 - orientation][task];
      if (other.memory == packed.memory) other.holds = nullptr;
    });
}

template <class T>
typename CpuBackend<T>::Factors CpuBackend<T>::factors(const BlockParameters<const T>& p,
                                                       Transpose transpose) {
  const Weight<T> all[] = {factor(p.gate_up, 2 * p.hidden, C_, transpose, 0),
                           factor(p.down, C_, p.hidden, transpose, 1),
                           factor(p.qkv, Q_, C_, transpose, 2), factor(p.o, C_, A_, transpose, 3)};
  pack_all(all);
  return {.qkv = all[2], .o = all[3], .gate_up = all[0], .down = all[1]};
}

template <class T>
void CpuBackend<T>::forward(int layer, const T* params, bool recompute) {
  SS_ASSERT(layer >= 0 && layer < shape_.layers);
  const BlockParameters<const T> p(params, shape_, layer);
  const Factors f = factors(p, kYes);
  Saved& s = saved(layer);
  const T* input = x(layer);
  T* output = recompute ? nullptr : x(layer + 1);
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) { project_qkv(p, f, input, s, c, w); });
  for_attention(s,
                [&](const AttentionShape& shape, const AttentionView<T>& at, int64_t, int worker) {
                  attention_forward(shape, at, workspaces_[size_t(worker)].attention);
                });
  for_chunks(N_, kRows,
             [&](Chunk c, Workspace& w) { output_and_mlp(p, f, input, s, output, c, w); });
  if (p.routed) dispatch(layer, s);
  held_ = {frame_, layer};
}

template <class T>
void CpuBackend<T>::restore(int layer, const T* params) {
  if (options_.recompute == Recompute::nothing ||
      held_ == std::pair<const Frame*, int>{frame_, layer})
    return;
  if (options_.recompute == Recompute::block) return forward(layer, params, true);
  const BlockParameters<const T> p(params, shape_, layer);
  if (p.hidden == 0) return;
  const int64_t F = p.hidden;
  const Weight<T> gate_up_factor = factor(p.gate_up, 2 * F, C_, kYes, 0);
  pack_all({&gate_up_factor, 1});
  const Saved& s = saved(layer);
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) {
    const T* input = s.middle + c.first * C_;
    if (!post_norm()) {
      kernel_.rms_norm(c.rows, C_, input, p.norm2, eps_, w.normed);
      input = w.normed;
    }
    T* gate_up = s.gate_up + c.first * 2 * F;
    float* product = direct(gate_up, w.wide);
    multiply(c.rows, input, Fp8::e4m3, gate_up_factor, product, w);
    if (!std::is_same_v<T, float>) kernel_.store(c.rows, 2 * F, product, 2 * F, gate_up, 2 * F);
  });
  held_ = {frame_, layer};
}

/// Rows c of s.qkv, q and k rotated, and of s.qk. x: (N, C), the block's input.
template <class T>
void CpuBackend<T>::project_qkv(const BlockParameters<const T>& p, const Factors& f, const T* x,
                                const Saved& s, Chunk c, Workspace& w) {
  const T* input = x + c.first * C_;
  if (!post_norm()) {
    kernel_.rms_norm(c.rows, C_, input, p.norm1, eps_, w.normed);
    input = w.normed;
  }
  T* qkv = s.qkv + c.first * Q_;
  float* product = direct(qkv, w.wide);
  multiply(c.rows, input, Fp8::e4m3, f.qkv, product, w);
  if (shape_.qkv_bias) kernel_.add_row(c.rows, Q_, p.bias, product, Q_);
  if (has_qk_norm()) {
    const int64_t ld = A_ + K_;
    T* qk = s.qk + c.first * ld;
    kernel_.store(c.rows, ld, product, Q_, qk, ld);
    const QkPieces q = qk_pieces(A_), k = qk_pieces(K_);
    kernel_.norm_pieces(c.rows, q.pieces, q.width, qk, ld, p.q_norm, eps_, product, Q_);
    kernel_.norm_pieces(c.rows, k.pieces, k.width, qk + A_, ld, p.k_norm, eps_, product + A_, Q_);
  }
  for_positions(c, [&](int64_t first, int64_t rows, int64_t position) {
    const int64_t at = (first - c.first) * Q_;
    kernel_.rope(rows, shape_.heads + shape_.kv_heads, D_, position, T_, cosine_, sine_, false,
                 product + at, Q_, qkv + at, Q_);
  });
  if (!std::is_same_v<T, float>)
    kernel_.store(c.rows, K_, product + A_ + K_, Q_, qkv + A_ + K_, Q_);
}

/// Rows c of what the block saves after attention, and of next: (N, C), the block's output; null:
/// not computed.
template <class T>
void CpuBackend<T>::output_and_mlp(const BlockParameters<const T>& p, const Factors& f, const T* x,
                                   Saved& s, T* next, Chunk c, Workspace& w) {
  const int64_t at = c.first * C_;
  const int64_t F = p.hidden;
  T* const normed = p.routed ? frame_->expert_in + at : w.normed;
  const T* input = post_norm() ? s.middle + at : normed;
  multiply(c.rows, s.attended + c.first * A_, Fp8::e4m3, f.o, w.narrow, w);
  if (post_norm()) {
    kernel_.store(c.rows, C_, w.narrow, C_, s.attention_out + at, C_);
    kernel_.norm_add(c.rows, C_, s.attention_out + at, p.norm1, eps_, x + at, s.middle + at);
  } else {
    kernel_.add_rms_norm(c.rows, C_, x + at, w.narrow, p.norm2, eps_, s.middle + at, normed);
  }
  if (p.routed) choose_experts(p, s, c, w);
  if (F == 0) {
    if (next) std::copy_n(s.middle + at, c.rows * C_, next + at);
    return;
  }
  T* gate_up = s.gate_up + c.first * 2 * F;
  float* product = direct(gate_up, w.wide);
  multiply(c.rows, input, Fp8::e4m3, f.gate_up, product, w);
  if (!next && !post_norm()) {
    if (!std::is_same_v<T, float>) kernel_.store(c.rows, 2 * F, product, 2 * F, gate_up, 2 * F);
    return;
  }
  kernel_.swiglu(c.rows, F, product, gate_up, w.act);
  multiply(c.rows, w.act, Fp8::e4m3, f.down, w.narrow, w);
  if (post_norm()) {
    kernel_.store(c.rows, C_, w.narrow, C_, s.mlp_out + at, C_);
    if (next) kernel_.norm_add(c.rows, C_, s.mlp_out + at, p.norm2, eps_, s.middle + at, next + at);
  } else {
    kernel_.add(c.rows * C_, s.middle + at, w.narrow, next + at);
  }
}

template <class T>
void CpuBackend<T>::backward_post_norm(Chunk c, const T* dy, const T* x, const T* gamma, T* d,
                                       float* dgamma, Workspace& w) {
  const float* wide = w.narrow;
  if constexpr (std::is_same_v<T, float>)
    wide = dy;
  else
    kernel_.widen(c.rows * C_, dy, w.narrow);
  kernel_.rms_norm_backward(c.rows, C_, x, gamma, eps_, wide, nullptr, d, w.normed, dgamma);
}

/// Rows c: from d_out to d_middle_ and d_attended_, through the MLP and the output projection.
/// Writes act_, d_gate_up_, normed2_ and, with norms after attention and MLP, normed1_ for the
/// weights' gradients; d_gamma2_ and then also d_gamma1_ for the norms'.
template <class T>
void CpuBackend<T>::backward_mlp(const BlockParameters<const T>& p, const Factors& f,
                                 const Saved& s, Chunk c, Workspace& w) {
  const int64_t at = c.first * C_, partial = c.first / kRows * C_;
  const T* d_mlp = frame_->d_out + at;
  if (post_norm()) {
    d_mlp = normed2_ + at;
    backward_post_norm(c, frame_->d_out + at, s.mlp_out + at, p.norm2, normed2_ + at,
                       d_gamma2_ + partial, w);
  }
  if (const int64_t F = p.hidden; F > 0) {
    T* act = act_ + c.first * F;
    T* d_gate_up = d_gate_up_ + c.first * 2 * F;
    float* d_act = direct(act, w.wide);
    multiply(c.rows, d_mlp, Fp8::e5m2, f.down, d_act, w);
    kernel_.swiglu_backward(c.rows, F, s.gate_up + c.first * 2 * F, d_act, d_gate_up, act);
    multiply(c.rows, d_gate_up, Fp8::e5m2, f.gate_up, w.narrow, w);
  } else {
    std::fill_n(w.narrow, c.rows * C_, 0.0f);
  }
  if (p.routed) {
    const int64_t E = shape_.experts.count;
    gemm(kNo, kNo, c.rows, C_, E, frame_->d_router + c.first * E, E, p.router, C_, 1, w.narrow, C_);
    kernels<float>().add(c.rows * C_, w.narrow, frame_->d_expert_in + at, w.narrow);
  }
  const T* d_attention = d_middle_ + at;
  if (post_norm()) {
    kernel_.add(c.rows * C_, frame_->d_out + at, w.narrow, d_middle_ + at);
    d_attention = normed1_ + at;
    backward_post_norm(c, d_middle_ + at, s.attention_out + at, p.norm1, normed1_ + at,
                       d_gamma1_ + partial, w);
  } else {
    kernel_.rms_norm_backward(c.rows, C_, s.middle + at, p.norm2, eps_, w.narrow,
                              frame_->d_out + at, d_middle_ + at, normed2_ + at,
                              d_gamma2_ + partial);
  }
  T* to = d_attended_ + c.first * A_;
  float* d_attended = direct(to, w.narrow);
  multiply(c.rows, d_attention, Fp8::e5m2, f.o, d_attended, w);
  if (!std::is_same_v<T, float>) kernel_.store(c.rows, A_, d_attended, A_, to, A_);
}

/// Rows c: from d_qkv_, whose q and k are rotated back, to d_in_. x: (N, C), the block's input.
/// Writes the partial gradients of the biases and of the norms before the projections.
template <class T>
void CpuBackend<T>::backward_qkv(const BlockParameters<const T>& p, const Factors& f, const T* x,
                                 const Saved& s, Chunk c, Workspace& w) {
  const int64_t at = c.first * C_, chunk = c.first / kRows;
  T* d_qkv = d_qkv_ + c.first * Q_;
  if (has_qk_norm()) {
    const int64_t ld = A_ + K_;
    const T* qk = s.qk + c.first * ld;
    const QkPieces q = qk_pieces(A_), k = qk_pieces(K_);
    kernel_.norm_pieces_backward(c.rows, q.pieces, q.width, qk, ld, p.q_norm, eps_, d_qkv, Q_,
                                 d_q_norm_ + chunk * q.width);
    kernel_.norm_pieces_backward(c.rows, k.pieces, k.width, qk + A_, ld, p.k_norm, eps_, d_qkv + A_,
                                 Q_, d_k_norm_ + chunk * k.width);
  }
  if (shape_.qkv_bias) kernel_.column_sums(c.rows, Q_, d_qkv, Q_, d_bias_ + chunk * Q_);
  multiply(c.rows, d_qkv, Fp8::e5m2, f.qkv, w.narrow, w);
  if (post_norm())
    kernel_.add(c.rows * C_, d_middle_ + at, w.narrow, d_in_ + at);
  else
    kernel_.rms_norm_backward(c.rows, C_, x + at, p.norm1, eps_, w.narrow, d_middle_ + at,
                              d_in_ + at, normed1_ + at, d_gamma1_ + chunk * C_);
}

template <class T>
void CpuBackend<T>::backward_block(int frame, int layer, const void* params, void* grad) {
  SS_ASSERT(options_.training);
  use(frame, Pass::backward, layer);
  restore(layer, static_cast<const T*>(params));
  const BlockParameters<const T> p(static_cast<const T*>(params), shape_, layer);
  const Factors f = factors(p, kNo);
  const BlockParameters<T> g(static_cast<T*>(grad), shape_, layer);
  const Saved& s = saved(layer);
  const T* input = x(layer);

  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) { backward_mlp(p, f, s, c, w); });
  for_attention(s, [&](const AttentionShape& shape, const AttentionView<T>& at, int64_t position,
                       int worker) {
    const AttentionGradient<T> gradient{d_attended_ + (at.out - s.attended),
                                        d_qkv_ + (at.q - s.qkv),
                                        d_qkv_ + (at.k - s.qkv),
                                        d_qkv_ + (at.v - s.qkv),
                                        cosine_ + position * (D_ / 2),
                                        sine_ + position * (D_ / 2)};
    attention_backward(shape, at, gradient, workspaces_[size_t(worker)].attention);
  });
  for_chunks(N_, kRows, [&](Chunk c, Workspace& w) { backward_qkv(p, f, input, s, c, w); });
  const bool post = post_norm();
  const bool fp8 = options_.fp8;
  const int64_t F = p.hidden, E = p.routed ? shape_.experts.count : 0;
  const WeightGradient gradients[] = {
      {N_, 2 * F, C_, d_gate_up_, 2 * F, post ? s.middle : normed2_, g.gate_up, fp8},
      {N_, F > 0 ? C_ : 0, F, post ? normed2_ : frame_->d_out, C_, act_, g.down, fp8},
      {N_, Q_, C_, d_qkv_, Q_, post ? input : normed1_, g.qkv, fp8},
      {N_, C_, A_, post ? normed1_ : d_middle_, C_, s.attended, g.o, fp8},
      {N_, E, C_, frame_->d_router, E, normed2_, g.router}};
  weight_gradients(gradients, true, true, nullptr);
  if (p.routed && shape_.experts.bias) std::fill_n(g.router_bias, E, T{});
  const int64_t chunks = (N_ + kRows - 1) / kRows;
  vector_gradient(d_gamma1_, chunks, C_, g.norm1);
  vector_gradient(d_gamma2_, chunks, C_, g.norm2);
  if (shape_.qkv_bias) vector_gradient(d_bias_, chunks, Q_, g.bias);
  if (has_qk_norm()) {
    vector_gradient(d_q_norm_, chunks, shape_.q_norm_width(), g.q_norm);
    vector_gradient(d_k_norm_, chunks, shape_.k_norm_width(), g.k_norm);
  }
  std::swap(frame_->d_out, d_in_);
}

/// Adds the part of these tokens to each gradient. first: these are the first tokens of the
/// micro-batch. last: these are the last ones, and the gradient is rounded to T. sums: (out, in)
/// fp32, keeps the sum of a single gradient between calls; null if first and last.
template <class T>
void CpuBackend<T>::weight_gradients(std::span<const WeightGradient> gradients, bool first,
                                     bool last, float* sums) {
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
    if (g->rows == 0) std::fill_n(grad, count * g->in, T{});
    for (int64_t row = 0; row < g->rows; row += kWeightTokens) {
      const int64_t tokens = std::min(kWeightTokens, g->rows - row);
      const T *dy = g->dy + row * g->ld_dy + begin, *x = g->x + row * g->in;
      int64_t ld_dy = g->ld_dy;
      if (g->fp8) {
        T* const rounded_dy = workspaces_[size_t(worker)].rounded;
        T* const rounded_x = rounded_dy + tokens * count;
        round_to_fp8(Fp8::e5m2, Fp8Blocks::column, tokens, count, dy, ld_dy, rounded_dy);
        round_to_fp8(Fp8::e4m3, Fp8Blocks::column, tokens, g->in, x, g->in, rounded_x);
        dy = rounded_dy, x = rounded_x, ld_dy = count;
      }
      gemm(kYes, kNo, count, g->in, tokens, dy, ld_dy, x, g->in, first && row == 0 ? 0 : 1, product,
           g->in);
    }
    if (!std::is_same_v<T, float> && last && g->rows > 0)
      kernel_.store(count, g->in, product, g->in, grad, g->in);
  });
}

/// grad (width) = the sum of partial (chunks, width) over its rows. width: at most Q or C.
template <class T>
void CpuBackend<T>::vector_gradient(const float* partial, int64_t chunks, int64_t width, T* grad) {
  float* sum = workspaces_[0].wide;
  std::copy_n(partial, width, sum);
  for (int64_t k = 1; k < chunks; ++k)
    for (int64_t i = 0; i < width; ++i) sum[i] += partial[k * width + i];
  kernel_.store(1, width, sum, width, grad, width);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
