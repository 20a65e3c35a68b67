// Attention by cuDNN's fused kernels, in bf16, on one stream. Only this file's source includes
// cuDNN. The compute thread makes all calls, which throw CudnnError.
//
// cuDNN computes a graph of tensors and operations by a plan. Its heuristics name several, the one that
// they take for the fastest first: the same cuDNN on the same kind of GPU names the same ones. A plan's
// name is its engine with the settings of it. The caller provides all memory.
//
// On Hopper and before, the deterministic backward pass keeps the gradient of the attention's
// scores, T x T values for each query head. To bound that memory, it runs part by part
// (attention_part()).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "model/cuda/attention_choice.hpp"
#include "model/cuda/check.hpp"

namespace simplescale::cuda {

struct CudnnError : CudaError {
  CudnnError(const std::string& text, bool no_memory_) : CudaError(text), no_memory(no_memory_) {}
  bool no_memory;  // the device had none
};

class CudnnAttention {
 public:
  /// deterministic: the backward pass is reproducible bit by bit.
  CudnnAttention(const AttentionShape& shape, bool deterministic, cudaStream_t stream);
  ~CudnnAttention();

  /// Loads cuDNN for the current device, so that the first object there need not.
  static void load();
  /// cuDNN's; 0: there is no cuDNN.
  static size_t version();

  /// Bytes of the workspace by this plan, which forward() and backward() then take; empty: the one
  /// made before, or the first that works. Throws if cuDNN has none for the shape on this GPU. A plan
  /// that is replaced must not be at work.
  size_t forward_workspace(const std::string& plan);
  size_t backward_workspace(const std::string& plan);
  /// The plans taken; empty: none yet.
  const std::string& forward_plan() const;
  const std::string& backward_plan() const;

  /// qkv: (batch * T, ld_qkv), a row is q, k, v; out: (batch * T, heads * D); log_sums: (batch,
  /// heads, T), the logarithm of each softmax's denominator.
  void forward(const void* qkv, void* out, float* log_sums, void* workspace);
  /// dqkv, the gradient of qkv, lies as qkv; dout as out.
  void backward(const void* qkv, const void* out, const float* log_sums, const void* dout,
                void* dqkv, void* workspace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::cuda
