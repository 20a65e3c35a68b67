// The first and the last unit of the model on the GPU: embeddings, and final norm with lm_head and
// loss.
#include <algorithm>
#include <type_traits>

#include "model/cuda/check.hpp"
#include "model/cuda/cuda_backend.hpp"
#include "model/tokens.hpp"

namespace simplescale::cuda {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CudaBackend<T>::upload(void* device, const void* pinned, size_t bytes) {
  SS_CUDA(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_));
}

template <class T>
void CudaBackend<T>::embed(int frame, const void* params, const int32_t* tokens) {
  use(frame);
  Frame& f = *frame_;
  const size_t count = static_cast<size_t>(f.token_begin - f.tokens + V_ + 1);
  SS_CUDA(cudaEventSynchronize(f.tokens_read));  // the previous micro-batch's upload
  auto* pinned = static_cast<int32_t*>(f.pinned_tokens.reserve(count * sizeof(int32_t)));
  int32_t* inputs = pinned + (f.inputs - f.tokens);
  SS_ASSERT(split_tokens(tokens, B_, T_, V_, inputs, pinned + (f.targets - f.tokens)));
  group_by_token({inputs, static_cast<size_t>(N_)}, V_, pinned + (f.token_begin - f.tokens),
                 pinned + (f.token_rows - f.tokens));
  find_documents(tokens, B_, T_, f.documents);
  SS_ASSERT(!f.documents.prompts);
  const std::vector<int32_t>& begin = f.documents.begin;
  std::copy(begin.begin(), begin.end(), pinned + (f.document_begin - f.tokens));
  int32_t* row_document = pinned + (f.row_document - f.tokens);
  for (size_t d = 0; d + 1 < begin.size(); ++d)
    std::fill(row_document + begin[d], row_document + begin[d + 1], static_cast<int32_t>(d));
  upload(f.tokens, pinned, count * sizeof(int32_t));
  SS_CUDA(cudaEventRecord(f.tokens_read, stream_));
  if (held_frame_ == frame_) held_frame_ = nullptr;
  sum_due_of_ = -1;
  show_documents();
  SS_CUDA(cuda::embed(stream_, N_, C_, static_cast<const T*>(params), f.inputs, x(0)));
}

/// Computes the final norm of all rows into normed_; then, kept_rows_ rows at a time, logits,
/// losses, the weight's gradient and the gradient of normed_, which goes to product_.
template <class T>
void CudaBackend<T>::head(int frame, const void* params, const void* tied, float scale, void* grad,
                          void* tied_grad) {
  use(frame);
  SS_ASSERT(!grad || options_.training);
  // The kernel writes to host memory. A copy would wait for those of the state, which the GPU's copy
  // engine makes in turn, and with it all kernels after it.
  auto* losses =
      static_cast<float*>(frame_->pinned_losses.reserve(static_cast<size_t>(N_) * sizeof(float)));
  const T* gamma = static_cast<const T*>(params);
  const T* weight = tied ? static_cast<const T*>(tied) : gamma + C_;
  T* weight_grad = nullptr;
  if (grad) weight_grad = tied ? static_cast<T*>(tied_grad) : static_cast<T*>(grad) + C_;
  const T* last = x(static_cast<int>(shape_.layers));
  const float dscale = scale / static_cast<float>(N_);
  norm_of_input(static_cast<int>(shape_.layers), gamma);
  for (int64_t begin = 0; begin < N_; begin += kept_rows_) {
    const int64_t rows = std::min(kept_rows_, N_ - begin);
    const T* normed = normed_ + begin * C_;
    gemm_.run(kNo, kYes, rows, V_, C_, normed, weight, logits_);
    SS_CUDA(cross_entropy(stream_, rows, V_, logits_, frame_->targets + begin, dscale,
                          options_.z_loss, grad != nullptr, losses + begin));
    if (!grad) continue;
    gemm_.run(kYes, kNo, V_, C_, rows, logits_, normed, weight_grad, begin > 0);
    gemm_.run(kNo, kNo, rows, C_, V_, logits_, weight, product_ + begin * C_);
  }
  if (grad) norm_backward(last, gamma, product_, nullptr, frame_->d_out, static_cast<T*>(grad));
  SS_CUDA(cudaEventRecord(frame_->losses_ready, stream_));
}

template <class T>
std::span<const float> CudaBackend<T>::losses(int frame) {
  Frame& f = frames_[static_cast<size_t>(frame)];
  const auto count = static_cast<size_t>(N_);
  SS_CUDA(cudaEventSynchronize(f.losses_ready));
  return {static_cast<const float*>(f.pinned_losses.reserve(count * sizeof(float))), count};
}

template <class T>
void CudaBackend<T>::logits(int frame, const void* params, const void* tied, float* logits) {
  use(frame);
  const T* gamma = static_cast<const T*>(params);
  const T* weight = tied ? static_cast<const T*>(tied) : gamma + C_;
  norm_of_input(static_cast<int>(shape_.layers), gamma);
  std::vector<T> host(static_cast<size_t>(kept_rows_ * V_));
  for (int64_t begin = 0; begin < N_; begin += kept_rows_) {
    const int64_t rows = std::min(kept_rows_, N_ - begin);
    gemm_.run(kNo, kYes, rows, V_, C_, normed_ + begin * C_, weight, logits_);
    copy_to_host(host.data(), logits_, static_cast<size_t>(rows * V_) * sizeof(T));
    std::transform(host.begin(), host.begin() + rows * V_, logits + begin * V_, [](T value) {
      if constexpr (std::is_same_v<T, float>)
        return value;
      else
        return bf16_to_f32(value.bits);
    });
  }
}

template <class T>
void CudaBackend<T>::backward_embed(int frame, void* grad) {
  SS_ASSERT(options_.training);
  use(frame);
  SS_CUDA(embed_backward(stream_, V_, C_, frame_->token_begin, frame_->token_rows, frame_->d_out,
                         static_cast<T*>(grad)));
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace simplescale::cuda
