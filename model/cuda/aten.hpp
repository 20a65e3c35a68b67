// The CUDA backend's attention, by libtorch's kernels or by cuDNN's (cudnn_attention.hpp), on one
// stream. Only this file's source includes ATen. The compute thread makes all calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "model/cuda/attention_choice.hpp"
#include "model/cuda/kernels.hpp"
#include "runtime/base/dtype.hpp"

namespace simplescale::cuda {

/// The documents of a micro-batch, in device memory that must not change before the next
/// micro-batch. Rows of different documents do not see each other.
struct DocumentRows {
  int64_t count = 0;
  const int32_t* begin = nullptr;   // (count + 1): the first row of each, then batch * T
  const int32_t* of_row = nullptr;  // (batch * T): the document of each row, numbered from 0
};

class Aten {
 public:
  /// deterministic: attention's backward pass is reproducible bit by bit. chosen: as AttentionChoice.
  Aten(int device_index, DType dtype, const AttentionShape& attention, bool deterministic,
       const ChosenAlgorithms* chosen);
  ~Aten();

  /// Initializes libtorch's CUDA and loads cuDNN, which otherwise the first objects do.
  static void load();
  /// 0: there is no cuDNN.
  static size_t cudnn_version();

  cudaStream_t stream() const;
  /// From now on takes this kernel, flash or cuDNN, instead of the run's. For tests and benchmarks.
  void use(AttentionKernel kernel);

  /// Begins a micro-batch: until the next call attention() and attention_backward() separate these
  /// documents. Null: every sample is one document.
  void set_documents(const DocumentRows* documents);

  /// What attention() keeps for attention_backward().
  struct Saved;
  struct SavedDeleter {
    void operator()(Saved*) const;
  };
  using SavedPtr = std::unique_ptr<Saved, SavedDeleter>;

  /// Causal grouped-query attention, arXiv 1706.03762, 2305.13245. qkv: (batch * T, ld_qkv), a row
  /// is q, k, v; q and k are rotated already. qkv must not change until the backward pass.
  SavedPtr attention(const void* qkv);
  /// The output, (batch * T, heads * D); valid as long as `saved` lives.
  const void* attended(const Saved& saved) const;

  /// Views of (batch, heads, T, D) and, for dk and dv, (batch, kv_heads, T, D); valid until the
  /// next call of attention_backward().
  template <class T>
  struct Gradients {
    HeadView<T> dq, dk, dv;
  };
  /// dattended: (batch * T, heads * D), the gradient of the output.
  template <class T>
  Gradients<T> attention_backward(const void* qkv, const Saved& saved, const void* dattended);

 private:
  SavedPtr attend(AttentionKernel kernel, const void* qkv);
  template <class T>
  Gradients<T> attend_backward(AttentionKernel kernel, const void* qkv, const Saved& saved,
                               const void* dattended);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::cuda
