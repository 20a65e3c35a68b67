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

/// The right factor of many products: B(k, n), or stored (n, k) if transposed. fp32 weights can be
/// kept in the order in which MKL wants them, which saves it a tenth of the time and makes products
/// of few rows as fast as large ones.
template <class T>
struct Weight {
  const T* data;
  int64_t k, n, ld;
  Transpose transpose;
  float* packed =
      nullptr;  // packed_bytes(*this) of memory, filled by pack(); null: used as it lies
};
/// 0 where packing is not worth it.
size_t packed_bytes(const Weight<float>& weight);
inline size_t packed_bytes(const Weight<Bf16>&) {
  return 0;
}
void pack(const Weight<float>& weight);
inline void pack(const Weight<Bf16>&) {}

/// C(m, n) = A(m, k) B.
void gemm(int64_t m, const float* A, int64_t lda, const Weight<float>& B, float* C, int64_t ldc);
void gemm(int64_t m, const Bf16* A, int64_t lda, const Weight<Bf16>& B, float* C, int64_t ldc);

}  // namespace simplescale::cpu
