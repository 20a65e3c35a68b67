// cuBLASLt as plain loops, as far as model/cuda/products.cpp uses it, over the fake GPU; linked
// instead of the real one. It has four algorithms, whose bits and times differ (fake_gpu.hpp).
#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "tests/gpu/elements.hpp"
#include "tests/gpu/fake_gpu.hpp"

using simplescale::DType;
using simplescale::cuda::Elements;
using namespace simplescale;

namespace {

constexpr int kAlgorithms = 4;
constexpr cublasLtReductionScheme_t kSchemes[kAlgorithms] = {
    CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_INPLACE,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE};

std::atomic<bool> handles_fail = false;
fake_gpu::Algorithms algorithms;

// What the opaque structures hold here.
struct Operation {
  int32_t transpose_a, transpose_b;
};
struct Layout {
  int32_t type;
  uint64_t rows, columns;
  int64_t ld;
};
struct Preference {
  uint64_t workspace_bytes;
  uint32_t schemes, alignments[4];
};

/// Sets one of the members; another size than its own is refused, as by cuBLASLt.
template <class T>
cublasStatus_t set(T& member, const void* value, size_t bytes) {
  if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
T& inside(void* opaque) {
  return *static_cast<T*>(opaque);
}

}  // namespace

void simplescale::fake_gpu::fail_handles(bool wanted) {
  handles_fail = wanted;
}
void simplescale::fake_gpu::set_algorithms(Algorithms wanted) {
  algorithms = std::move(wanted);
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handles_fail) return CUBLAS_STATUS_ARCH_MISMATCH;
  if (fake_gpu::finds_no_memory()) return CUBLAS_STATUS_NOT_INITIALIZED;
  int device = 0;
  (void)cudaGetDevice(&device);
  fake_gpu::note("cublasLt: a handle on GPU " + std::to_string(device));
  *handle = static_cast<cublasLtHandle_t>(::operator new(1));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  ::operator delete(static_cast<void*>(handle));
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
  return algorithms.version;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
         : status == CUBLAS_STATUS_ARCH_MISMATCH ? "CUBLAS_STATUS_ARCH_MISMATCH"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = new cublasLtMatmulDescOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto& operation = inside<Operation>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(operation.transpose_b, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *made = new cublasLtMatrixLayoutOpaque_t{};
  inside<Layout>(*made) = {type, rows, columns, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque_t{};
  inside<Preference>(*made) = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto& preference = inside<Preference>(to);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                 value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  const auto& allowed = inside<Preference>(preference);
  if (allowed.workspace_bytes == 0 || algorithms.none) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t i = 0; i < kAlgorithms && *count < wanted; ++i) {
    if (kSchemes[i] != CUBLASLT_REDUCTION_SCHEME_NONE && !(kSchemes[i] & allowed.schemes)) continue;
    results[*count] = {};
    auto& data = results[*count].algo.data;
    data[0] = i;
    std::copy_n(allowed.alignments, 4, data + 1);
    data[7] = ~i;
    if (algorithms.invalid.contains(static_cast<int>(i)))
      results[*count].state = CUBLAS_STATUS_NOT_SUPPORTED;
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t*) {
  const auto number = static_cast<uint32_t>(algorithm->data[0]);
  const uint32_t found = attribute == CUBLASLT_ALGO_CONFIG_ID        ? 60 + number
                         : attribute == CUBLASLT_ALGO_CONFIG_TILE_ID ? 20 + number
                                                                     : 1;
  if (bytes != sizeof found) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &found, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const auto number = static_cast<int>(algorithm->data[0]);
  if (algorithms.large.contains(number)) result->workspaceSize = size_t{1} << 40;
  return algorithm->data[0] < kAlgorithms && algorithm->data[7] == ~algorithm->data[0] &&
                 !algorithms.refused.contains(number)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

/// The odd algorithms sum from the end, in fp32: their bits are others.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                              cudaStream_t stream) {
  const auto number = static_cast<int>(algorithm->data[0]);
  algorithms.on_product();
  const void* operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<uintptr_t>(operands[i]) % algorithm->data[1 + i] != 0)
      return CUBLAS_STATUS_NOT_SUPPORTED;
  if (algorithms.failing.contains(number)) return CUBLAS_STATUS_NOT_SUPPORTED;
  fake_gpu::check_last_error();
  const auto& op = inside<Operation>(desc);
  const auto &left = inside<Layout>(a_layout), &right = inside<Layout>(b_layout),
             &out = inside<Layout>(c_layout);
  const bool turn_a = op.transpose_a == CUBLAS_OP_T, turn_b = op.transpose_b == CUBLAS_OP_T;
  const auto m = static_cast<int64_t>(out.rows), n = static_cast<int64_t>(out.columns),
             k = static_cast<int64_t>(turn_a ? left.rows : left.columns);
  if (static_cast<int64_t>(turn_a ? left.columns : left.rows) != m ||
      static_cast<int64_t>(turn_b ? right.rows : right.columns) != n ||
      static_cast<int64_t>(turn_b ? right.columns : right.rows) != k || c != d ||
      *static_cast<const float*>(alpha) != 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool added = *static_cast<const float*>(beta) == 1;
  // As the caller, whose matrices lie by rows, counts.
  fake_gpu::note("cublasLt: product " + std::to_string(n) + " x " + std::to_string(m) + " x " +
                 std::to_string(k) + (added ? ", added" : "") +
                 (number > 0 ? ", algorithm " + std::to_string(number) : ""));
  const auto elements = [](const void* data, const Layout& layout) {
    return Elements{const_cast<void*>(data), layout.type == CUDA_R_32F ? DType::f32 : DType::bf16};
  };
  for (int i = 1; i < algorithms.ms[number]; ++i) fake_gpu::run_on(stream, [] {});
  fake_gpu::run_on(stream, [=, x = elements(a, left), y = elements(b, right), z = elements(d, out),
                            lda = left.ld, ldb = right.ld, ldd = out.ld] {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        const double before = added ? z[j * ldd + i] : 0;
        const auto factor = [&](int64_t s) {
          return x[turn_a ? i * lda + s : s * lda + i] * y[turn_b ? s * ldb + j : j * ldb + s];
        };
        double sum = before;
        for (int64_t s = 0; s < k; ++s) sum += factor(s);
        if (number % 2 == 1) {
          auto other = static_cast<float>(before);
          for (int64_t s = k; s-- > 0;) other += static_cast<float>(factor(s));
          sum = double{other};
        }
        z.set(j * ldd + i, sum);
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
