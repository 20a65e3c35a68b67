// The CUDA backend's matrix products, by cuBLASLt on one stream. Only this file's source calls it.
// The compute thread makes all calls, which throw CudaError.
//
// cuBLASLt offers several algorithms for a product. Each is deterministic by itself: its sums over
// parts of k are in fp32, in a fixed order. Their times differ by some percent, and so do their
// bits. The first trainer of a run that makes a product measures them; the run keeps the fastest
// (BACKEND-2, chosen_algorithms.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "model/cuda/chosen_algorithms.hpp"
#include "model/cuda/kernels.hpp"
#include "runtime/base/dtype.hpp"

namespace simplescale::cuda {

enum class Transpose { no, yes };

/// A factor of gemm_fp8(), as to_fp8() makes it.
struct Fp8Factor {
  Fp8Kind kind;
  Fp8Values at;
};

class Gemm {
 public:
  /// chosen: the run's choices, which must outlive this object; null: each product takes the
  /// algorithm that cuBLASLt names first, without measuring.
  Gemm(DType dtype, cudaStream_t stream, const ChosenAlgorithms* chosen);
  ~Gemm();

  /// Loads cuBLASLt for the current device, so that the first object there need not.
  static void load();

  /// c = op(a) op(b), + c if accumulate; all row-major without gaps. op(a): (m, k); op(b): (k, n);
  /// c: (m, n). Accumulates in fp32 and rounds once.
  void run(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
           const void* a, const void* b, void* c, bool accumulate = false);
  /// c = a b^T, + c if accumulate, of values times their block's scale. a: (m, k); b: (n, k); c:
  /// (m, n). m, n, k: multiples of 16. At most one is a weight, and one a gradient. Only GPUs of the
  /// capability kFp8Major.kFp8Minor have such products.
  void run_fp8(int64_t m, int64_t n, int64_t k, const Fp8Factor& a, const Fp8Factor& b, void* c,
               bool accumulate = false);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
constexpr int kFp8Major = 9, kFp8Minor = 0;  // Hopper

}  // namespace simplescale::cuda
