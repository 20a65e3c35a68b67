// Which kernel each pass of attention takes. In bf16 without a window and documents that is flash or
// cuDNN, whichever is faster on this GPU; the run keeps the choice for all its trainers (BACKEND-2).
// Both keep the same sums of the softmax, so the two passes may take different ones. cuDNN has several
// plans for a pass, with different bits; the choice names the plan.
//
// cuDNN's backward pass needs a workspace that grows with samples and heads. It computes as many of
// them at a time as attention_part() allows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "model/cuda/chosen_algorithms.hpp"
#include "model/cuda/fastest.hpp"
#include "runtime/base/dtype.hpp"

namespace simplescale::cuda {

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, T = 0, D = 0;
  int64_t ld_qkv = 0;  // elements from one token's row of q, k and v to the next token's
  int64_t window = 0;  // a token attends to itself and window - 1 before it; 0: to all

  /// For people, and the name of the run's choices.
  std::string text() const;
};

enum class AttentionKernel {
  efficient,  // libtorch's for fp32; keys and values are repeated; documents by a mask
  flash,      // libtorch's for bf16; it knows windows and documents
  cudnn,      // cuDNN's for bf16, without windows and documents
};

class AttentionChoice {
 public:
  /// pass: "forward" or what else names it. chosen: the run's choices, which must outlive this
  /// object; null: flash, without measuring.
  AttentionChoice(const AttentionShape& shape, DType dtype, std::string pass,
                  const ChosenAlgorithms* chosen);

  /// The kernel of a micro-batch. The first one without documents may measure: launch(kernel) makes
  /// this pass; then says on stderr what it found, and calls measured(). cudnn_plan() names the plan
  /// by which launch(cudnn) has made it. Throws CudaError, and what fastest() throws.
  AttentionKernel kernel(cudaStream_t stream, bool documents,
                         const std::function<void(AttentionKernel)>& launch,
                         const std::function<std::string()>& cudnn_plan,
                         bool (*may_work_later)(const std::exception&),
                         const std::function<void()>& measured);
  /// The plan that cuDNN must take; empty: the first that works, since nothing is chosen yet, or an
  /// older version of the program has chosen.
  const std::string& cudnn_plan() const { return plan_; }
  /// From now on takes this one.
  void use(AttentionKernel kernel) { kernel_ = kernel; }

 private:
  const std::string name_;
  const ChosenAlgorithms* const chosen_;
  std::optional<AttentionKernel> kernel_;  // none: not chosen yet
  std::string plan_;
};

/// True if cuDNN or cudnn-frontend says so that there was no memory.
bool is_want_of_memory(const std::string& error);

/// Builds the plan `wanted` of these, which are in cuDNN's order, or, if it is empty, the first that
/// can be built; returns its index. build(index) throws CudnnError. One that finds no memory is not
/// passed over: the next one's bits may differ. pass: for the error. Throws CudnnError.
size_t attention_plan(std::span<const std::string> plans, const std::string& wanted,
                      const std::string& pass, const std::function<void(size_t)>& build);

/// The samples, and the heads of keys of each, that are computed at a time: all heads, or some of
/// one sample.
struct AttentionPart {
  int64_t samples = 0, kv_heads = 0;
};
/// Of a part's workspace; runtime/config/memory.cpp counts it, too.
constexpr size_t kAttentionWorkspaceBytesMax = size_t{640} << 20;
/// The largest part whose share of workspace_bytes, which all together need, is at most that; or else
/// the smallest. The sums of the softmax of each part, in (batch, heads, T), begin at a multiple of 16
/// bytes if those of the first do: cuDNN chooses its kernels for that alignment.
AttentionPart attention_part(const AttentionShape& shape, size_t workspace_bytes);

}  // namespace simplescale::cuda
