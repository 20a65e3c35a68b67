// Matrix products on one thread, by the MKL inside libtorch. Callers cut a product into blocks that
// depend on the shapes alone and hand the blocks to a ThreadPool, so the bits never depend on the
// number of threads. Any thread.
#pragma once

#include <cstdint>

#include "model/cpu/element.hpp"

namespace simplescale::cpu {

enum class Transpose : bool { no, yes };

/// Row-major C(m, n) = A B + beta C with A(m, k), or stored (k, m) if transposed; B(k, n), or
/// stored (n, k). Leading dimensions in elements. Sums are fp32. beta 0 does not read C. All sizes
/// at least 1.
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const float* A, int64_t lda,
          const float* B, int64_t ldb, float beta, float* C, int64_t ldc);
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const Bf16* A, int64_t lda,
          const Bf16* B, int64_t ldb, float beta, float* C, int64_t ldc);

}  // namespace simplescale::cpu
