#include "model/cpu/gemm.hpp"

#include <dlfcn.h>

#include "model/cpu/instructions.hpp"
#include "runtime/training/arithmetic.hpp"

// libtorch_cpu.so exports its MKL (LP64, column-major); its wheel ships no header for it.
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const uint16_t* a, const int* lda,
                       const uint16_t* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);
size_t sgemm_pack_get_size_(const char* which, const int* m, const int* n, const int* k);
void sgemm_pack_(const char* which, const char* trans, const int* m, const int* n, const int* k,
                 const float* alpha, const float* from, const int* ld, float* to);
void sgemm_compute_(const char* transa, const char* transb, const int* m, const int* n,
                    const int* k, const float* a, const int* lda, const float* b, const int* ldb,
                    const float* beta, float* c, const int* ldc);
int mkl_set_num_threads_local_(const int* threads);

// MKL calls this before it checks the CPU's instruction sets. MKL's own version returns 0 on AMD
// and so selects AVX2 kernels at half the speed. The executables export this one
// (cmake/targets.cmake), so that the linker finds it before libtorch's.
__attribute__((visibility("default"), used)) int mkl_serv_intel_cpu_true() {
  return 1;
}
}

namespace simplescale::cpu {
namespace {

/// Makes MKL use this process's instructions and only the calling thread, from its first call on. On
/// a CPU without AVX-512 MKL's bf16 product ignores its own setting and starts an OpenMP team for
/// every call, whose threads spin for each other when processes share the cores; so libtorch's OpenMP
/// is told, too.
void prepare_mkl() {
  static const int one = 1;
  static const auto set_omp_threads =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  [[maybe_unused]] static thread_local const int before = [] {
    if (set_omp_threads) set_omp_threads(1);
    (void)used_instructions();
    return mkl_set_num_threads_local_(&one);
  }();
}

char code(Transpose t) {
  return t == Transpose::yes ? 'T' : 'N';
}

}  // namespace

// MKL is column-major: a row-major matrix is its own transpose there, so C^T = B^T A^T is computed.
void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const float* A, int64_t lda,
          const float* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  prepare_mkl();
  const char ta = code(a), tb = code(b);
  const int im = int(m), in = int(n), ik = int(k), ia = int(lda), ib = int(ldb), ic = int(ldc);
  const float one = 1;
  sgemm_(&tb, &ta, &in, &im, &ik, &one, B, &ib, A, &ia, &beta, C, &ic);
}

void gemm(Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, const Bf16* A, int64_t lda,
          const Bf16* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  prepare_mkl();
  const char ta = code(a), tb = code(b);
  const int im = int(m), in = int(n), ik = int(k), ia = int(lda), ib = int(ldb), ic = int(ldc);
  const float one = 1;
  gemm_bf16bf16f32_(&tb, &ta, &in, &im, &ik, &one, &B->bits, &ib, &A->bits, &ia, &beta, C, &ic);
}

// Any number of rows works with what MKL has packed for kPackedRows.
using arithmetic::kPackedBytes, arithmetic::kPackedRows;

size_t packed_bytes(const Weight<float>& w) {
  prepare_mkl();
  const int n = int(w.n), k = int(w.k);
  const size_t bytes = sgemm_pack_get_size_("A", &n, &kPackedRows, &k);
  return bytes <= kPackedBytes ? bytes : 0;
}

void pack(const Weight<float>& w) {
  prepare_mkl();
  if (!w.packed) return;
  const char trans = code(w.transpose);
  const int n = int(w.n), k = int(w.k), ld = int(w.ld);
  const float one = 1;
  sgemm_pack_("A", &trans, &n, &kPackedRows, &k, &one, w.data, &ld, w.packed);
}

void gemm(int64_t m, const float* A, int64_t lda, const Weight<float>& w, float* C, int64_t ldc) {
  if (!w.packed) {
    gemm(Transpose::no, w.transpose, m, w.n, w.k, A, lda, w.data, w.ld, 0, C, ldc);
    return;
  }
  prepare_mkl();
  const int im = int(m), n = int(w.n), k = int(w.k), ld = int(w.ld), ia = int(lda), ic = int(ldc);
  const float zero = 0;
  sgemm_compute_("P", "N", &n, &im, &k, w.packed, &ld, A, &ia, &zero, C, &ic);
}

void gemm(int64_t m, const Bf16* A, int64_t lda, const Weight<Bf16>& w, float* C, int64_t ldc) {
  gemm(Transpose::no, w.transpose, m, w.n, w.k, A, lda, w.data, w.ld, 0, C, ldc);
}

}  // namespace simplescale::cpu
