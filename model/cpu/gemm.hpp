// Matrix products on one thread, by the MKL inside libtorch. Callers cut a product into blocks that
// depend on the shapes only and give the blocks to a ThreadPool, so the bits do not depend on the
// number of threads (BACKEND-1). Any thread.
#pragma once

#include <cstdint>

#include "model/cpu/element.hpp"

namespace simplescale::cpu {

enum class Transpose : bool { no, yes };

/// C = A B + beta C, row-major, sums in fp32. A: (m, k), or stored as (k, m) if transposed.
/// B: (k, n), or stored as (n, k) if transposed. C: (m, n) fp32; not read if beta is 0. Leading
/// dimensions are in elements. All sizes are at least 1.
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const float* A, int64_t lda,
          const float* B, int64_t ldb, float beta, float* C, int64_t ldc);
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const Bf16* A, int64_t lda,
          const Bf16* B, int64_t ldb, float beta, float* C, int64_t ldc);

/// The right factor B of many products: (k, n), or stored as (n, k) if transposed. fp32 weights can
/// be packed in MKL's own order, which saves a tenth of the time and makes products of few rows as
/// fast as large ones.
template <class T>
struct Weight {
  const T* data;
  int64_t k, n, ld;
  Transpose transpose;
  float* packed = nullptr;  // packed_bytes(*this) bytes, filled by pack(); null: not packed
};
/// Bytes that pack() needs; 0 if the weight is not to be packed.
size_t packed_bytes(const Weight<float>& weight);
inline size_t packed_bytes(const Weight<Bf16>&) {
  return 0;
}
/// Packs weight.data into weight.packed; does nothing if that is null.
void pack(const Weight<float>& weight);
inline void pack(const Weight<Bf16>&) {}

/// C = A B, row-major. A: (m, k); B: (k, n); C: (m, n) fp32.
void gemm(int64_t m, const float* A, int64_t lda, const Weight<float>& B, float* C, int64_t ldc);
void gemm(int64_t m, const Bf16* A, int64_t lda, const Weight<Bf16>& B, float* C, int64_t ldc);

}  // namespace simplescale::cpu
