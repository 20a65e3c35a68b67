#include "model/cpu/gemm.hpp"

// libtorch_cpu.so exports its MKL (LP64, column-major); its wheel ships no header for it.
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const uint16_t* a, const int* lda,
                       const uint16_t* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);
int mkl_set_num_threads_local_(const int* threads);

// MKL asks this before it looks at what the CPU can do; by default it answers 0 on AMD and takes
// its AVX2 kernels, at half the speed. The executables export it (see cmake/targets.cmake), so it
// is found before libtorch's own.
__attribute__((visibility("default"), used)) int mkl_serv_intel_cpu_true() {
  return 1;
}
}

namespace simplescale::cpu {
namespace {

void one_thread() {
  static const int one = 1;
  [[maybe_unused]] static thread_local const int before = mkl_set_num_threads_local_(&one);
}

char code(Transpose t) {
  return t == Transpose::yes ? 'T' : 'N';
}

}  // namespace

// A row-major matrix is its transpose in column-major order: C^T = B^T A^T.
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const float* A, int64_t lda,
          const float* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  one_thread();
  const char ta = code(a), tb = code(b);
  const int im = int(m), in = int(n), ik = int(k), ia = int(lda), ib = int(ldb), ic = int(ldc);
  const float one = 1;
  sgemm_(&tb, &ta, &in, &im, &ik, &one, B, &ib, A, &ia, &beta, C, &ic);
}

void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const Bf16* A, int64_t lda,
          const Bf16* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  one_thread();
  const char ta = code(a), tb = code(b);
  const int im = int(m), in = int(n), ik = int(k), ia = int(lda), ib = int(ldb), ic = int(ldc);
  const float one = 1;
  gemm_bf16bf16f32_(&tb, &ta, &in, &im, &ik, &one, &B->bits, &ib, &A->bits, &ia, &beta, C, &ic);
}

}  // namespace simplescale::cpu
