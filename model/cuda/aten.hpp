// What libtorch does for the CUDA backend: matrix products and attention, on one stream. The only
// file of this folder whose source includes ATen. The compute thread calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "model/cuda/kernels.hpp"
#include "runtime/base/dtype.hpp"

namespace simplescale::cuda {

enum class Transpose { no, yes };

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, T = 0, D = 0;
  int64_t ld_qkv = 0;  // elements from one token's row of q, k and v to the next one's
};

class Aten {
 public:
  /// deterministic: attention's backward pass has the same bits every time (products always have).
  Aten(int device_index, DType dtype, const AttentionShape& attention, bool deterministic);
  ~Aten();

  cudaStream_t stream() const;

  /// c (m, n) = op(a) op(b), + c if accumulate; row by row without gaps. op(a): (m, k), op(b): (k,
  /// n). fp32 accumulation, rounded once.
  void gemm(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
            const void* a, const void* b, void* c, bool accumulate = false);

  /// What the forward pass of one layer leaves for its backward pass; owned by this object.
  struct Saved;
  struct SavedDeleter {
    void operator()(Saved*) const;
  };
  using SavedPtr = std::unique_ptr<Saved, SavedDeleter>;

  /// Causal grouped-query attention over qkv: (batch * T, ld_qkv), q, k and v side by side, rotated
  /// already; arXiv 1706.03762, 2305.13245. qkv must stay as it is until the backward pass.
  SavedPtr attention(const void* qkv);
  /// The result, (batch * T, heads * D), as long as `saved` lives.
  const void* attended(const Saved& saved) const;

  /// Gradients as (batch, heads, T, D) views; valid until the next call.
  template <class T>
  struct Gradients {
    HeadView<T> dq, dk, dv;
  };
  template <class T>
  Gradients<T> attention_backward(const void* qkv, const Saved& saved, const void* dattended);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::cuda
