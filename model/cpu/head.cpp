// The first and the last unit of the model on the CPU: embeddings, and final norm with lm_head and
// loss.
#include <algorithm>
#include <cstring>

#include "model/cpu/cpu_backend.hpp"
#include "model/tokens.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
constexpr int64_t kTokens = 256;  // rows of the embedding matrix per task
}  // namespace

template <class T>
void CpuBackend<T>::embed(int frame, const void* params, const int32_t* tokens) {
  use(frame);
  SS_ASSERT(split_tokens(tokens, B_, T_, V_, frame_->inputs, frame_->targets));
  find_documents(tokens, B_, T_, frame_->documents);
  if (held_.first == frame_) held_ = {};
  const T* table = static_cast<const T*>(params);
  for_chunks(N_, kRows, [&](Chunk c, Workspace&) {
    for (int64_t r = c.first; r < c.first + c.rows; ++r)
      std::memcpy(x(0) + r * C_, table + frame_->inputs[r] * C_,
                  static_cast<size_t>(C_) * sizeof(T));
  });
}

/// Chunks of rows compute logits, losses and d logits. The rows whose d logits fit kLogitBytes come
/// first, then their part of the weight's gradient, then the next rows.
template <class T>
void CpuBackend<T>::head(int frame, const void* params, const void* tied, float scale, void* grad,
                         void* tied_grad) {
  use(frame, Pass::head);
  SS_ASSERT(!grad || options_.training);
  const T* gamma = static_cast<const T*>(params);
  const T* weight = tied ? static_cast<const T*>(tied) : gamma + C_;
  const T* last = x(static_cast<int>(shape_.layers));
  const float dscale = scale / static_cast<float>(N_);
  // The engine divides by the targets of the step that are trained: a mean of the micro-batches' router
  // losses, each with the weight of its own such targets, needs no more than this.
  const auto trained = std::count_if(frame_->targets, frame_->targets + N_,
                                     [](int32_t target) { return target >= 0; });
  frame_->router_scale = dscale * (static_cast<float>(trained) / static_cast<float>(N_));
  const Weight<T> to_logits = this->weight(weight, V_, C_, kYes, 0);
  const Weight<T> from_logits = this->weight(weight, V_, C_, kNo, 1);
  const Weight<T> both[] = {to_logits, from_logits};
  pack_all({both, grad ? 2u : 1u});
  const int64_t kept = grad ? kept_rows_ : N_;
  for (int64_t begin = 0; begin < N_; begin += kept) {
    const int64_t rows = std::min(kept, N_ - begin);
    for_chunks(rows, kHeadRows, [&](Chunk c, Workspace& w) {
      const int64_t row = begin + c.first, at = row * C_;
      T* d_logits = grad ? d_logits_ + c.first * V_ : nullptr;
      float* product = d_logits ? direct(d_logits, w.wide) : w.wide;
      kernel_.rms_norm(c.rows, C_, last + at, gamma, eps_, w.normed);
      gemm(c.rows, w.normed, C_, to_logits, product, V_);
      kernel_.cross_entropy(c.rows, V_, product, frame_->targets + row, dscale, options_.z_loss,
                            d_logits, frame_->losses + row);
      if (!grad) return;
      gemm(c.rows, d_logits, V_, from_logits, w.narrow, C_);
      kernel_.rms_norm_backward(c.rows, C_, last + at, gamma, eps_, w.narrow, nullptr,
                                frame_->d_out + at, normed1_ + at,
                                d_gamma1_ + row / kHeadRows * C_);
    });
    if (!grad) continue;
    T* weight_grad = tied ? static_cast<T*>(tied_grad) : static_cast<T*>(grad) + C_;
    const WeightGradient gradient{rows, V_, C_, d_logits_, V_, normed1_ + begin * C_, weight_grad};
    weight_gradients({&gradient, 1}, begin == 0, begin + rows == N_, head_sums_);
  }
  if (grad) vector_gradient(d_gamma1_, (N_ + kHeadRows - 1) / kHeadRows, C_, static_cast<T*>(grad));
}

template <class T>
void CpuBackend<T>::logits(int frame, const void* params, const void* tied, float* logits) {
  use(frame);
  const T* gamma = static_cast<const T*>(params);
  const T* weight = tied ? static_cast<const T*>(tied) : gamma + C_;
  const T* last = x(static_cast<int>(shape_.layers));
  for_chunks(N_, kHeadRows, [&](Chunk c, Workspace& w) {
    kernel_.rms_norm(c.rows, C_, last + c.first * C_, gamma, eps_, w.normed);
    gemm(kNo, kYes, c.rows, V_, C_, w.normed, C_, weight, C_, 0, logits + c.first * V_, V_);
  });
}

template <class T>
void CpuBackend<T>::backward_embed(int frame, void* grad) {
  use(frame);
  SS_ASSERT(options_.training);
  group_by_token({frame_->inputs, static_cast<size_t>(N_)}, V_, token_begin_, token_rows_);
  pool_.run((V_ + kTokens - 1) / kTokens, [&](int64_t task, int) {
    const int64_t end = std::min(V_, (task + 1) * kTokens);
    for (int64_t v = task * kTokens; v < end; ++v) {
      const int32_t count = token_begin_[v + 1] - token_begin_[v];
      kernel_.sum_rows(count, token_rows_ + token_begin_[v], C_, frame_->d_out,
                       static_cast<T*>(grad) + v * C_);
    }
  });
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
