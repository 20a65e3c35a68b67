// cuBLASLt as plain loops, as far as model/cuda/gemm.cpp uses it, over the fake GPU; linked
// instead of the real one. It has four algorithms, whose bits and times differ (fake_gpu.hpp).
#include <cublasLt.h>
#include <cuda_fp8.h>

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
  int32_t transpose_a, transpose_b, scale_mode_a, scale_mode_b;
  const float *scales_a, *scales_b;
};
struct Layout {
  int32_t type;
  uint64_t rows, columns;
  int64_t ld;
  bool is_fp8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
};
constexpr int32_t kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                  kSquares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

/// What cuBLAS 13 asks of products of fp8 with a scale for each block, on Hopper (its manual, "FP8
/// kernels" and "Scaling Mode Support Overview").
bool fp8_is_allowed(const Operation& op, const Layout& a, const Layout& b, const Layout& d) {
  const auto by_16 = [](const Layout& l) {
    return l.rows % 16 == 0 && l.columns % 16 == 0 && l.ld % 16 == 0;
  };
  const auto known = [](int32_t mode) { return mode == kVectors || mode == kSquares; };
  return a.is_fp8() && b.is_fp8() && !d.is_fp8() &&
         (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) && op.transpose_a == CUBLAS_OP_T &&
         op.transpose_b == CUBLAS_OP_N && known(op.scale_mode_a) && known(op.scale_mode_b) &&
         (op.scale_mode_a == kVectors || op.scale_mode_b == kVectors) && op.scales_a &&
         op.scales_b && by_16(a) && by_16(b) && by_16(d);
}

/// A factor in fp8: each of its columns holds `rows` values that are summed over.
struct Fp8Elements {
  const uint8_t* data;
  Layout layout;
  int32_t scale_mode;
  const float* scales;
  double operator()(int64_t row, int64_t column) const {
    const auto kind = layout.type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    const __half value(__nv_cvt_fp8_to_halfraw(data[column * layout.ld + row], kind));
    const auto in_column = static_cast<int64_t>((layout.rows + 127) / 128 + 3) / 4 * 4;
    const int64_t scale = scale_mode == kSquares
                              ? column / 128 * in_column + row / 128
                              : row / 128 * static_cast<int64_t>(layout.columns) + column;
    return double{static_cast<float>(value)} * double{scales[scale]};
  }
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
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(operation.scale_mode_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(operation.scale_mode_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(operation.scales_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(operation.scales_b, value, bytes);
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

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  const auto& left = inside<Layout>(a);
  if ((left.is_fp8() || inside<Layout>(b).is_fp8()) &&
      !fp8_is_allowed(inside<Operation>(desc), left, inside<Layout>(b), inside<Layout>(d)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
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
                 std::to_string(k) + (left.is_fp8() ? ", fp8" : "") + (added ? ", added" : "") +
                 (number > 0 ? ", algorithm " + std::to_string(number) : ""));
  const auto elements = [](const void* data, const Layout& layout) {
    return Elements{const_cast<void*>(data), layout.type == CUDA_R_32F ? DType::f32 : DType::bf16};
  };
  for (int i = 1; i < algorithms.ms[number]; ++i) fake_gpu::run_on(stream, [] {});
  const auto product = [=, z = elements(d, out), ldd = out.ld](auto factor) {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        const double before = added ? z[j * ldd + i] : 0;
        double sum = before;
        for (int64_t s = 0; s < k; ++s) sum += factor(i, j, s);
        if (number % 2 == 1) {
          auto other = static_cast<float>(before);
          for (int64_t s = k; s-- > 0;) other += static_cast<float>(factor(i, j, s));
          sum = double{other};
        }
        z.set(j * ldd + i, sum);
      }
  };
  if (left.is_fp8())
    fake_gpu::run_on(
        stream,
        [=, x = Fp8Elements{static_cast<const uint8_t*>(a), left, op.scale_mode_a, op.scales_a},
         y = Fp8Elements{static_cast<const uint8_t*>(b), right, op.scale_mode_b, op.scales_b}] {
          product([&](int64_t i, int64_t j, int64_t s) { return x(s, i) * y(s, j); });
        });
  else
    fake_gpu::run_on(
        stream, [=, x = elements(a, left), y = elements(b, right), lda = left.ld, ldb = right.ld] {
          product([&](int64_t i, int64_t j, int64_t s) {
            return x[turn_a ? i * lda + s : s * lda + i] * y[turn_b ? s * ldb + j : j * ldb + s];
          });
        });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
