#include "model/cuda/gemm.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/check.hpp"
#include "model/cuda/fastest.hpp"
#include "model/cuda/memory.hpp"

namespace simplescale::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends on Hopper
constexpr int kCandidates = 8;

struct CublasError : CudaError {
  CublasError(cublasStatus_t status_, const std::string& text) : CudaError(text), status(status_) {}
  cublasStatus_t status;
};

void check_cublas(cublasStatus_t status, const char* expression, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CublasError(status, std::string(__FILE__) + ":" + std::to_string(line) + ": " + expression +
                                ": " + cublasLtGetStatusName(status));
}

/// Throws CublasError with expression, file and line unless the call succeeded.
#define SS_CUBLAS(expression) check_cublas((expression), #expression, __LINE__)

/// cublasLtCreate() may report missing memory as "not initialized".
bool out_of_memory(const std::exception& error) {
  const auto* of_cublas = dynamic_cast<const CublasError*>(&error);
  return of_cublas && (of_cublas->status == CUBLAS_STATUS_ALLOC_FAILED ||
                       of_cublas->status == CUBLAS_STATUS_NOT_INITIALIZED);
}

/// A call may find no memory while a killed process's is being freed.
template <class Body>
void with_memory(Body body) {
  DeviceMemoryRetry patience;
  for (;;) try {
      return body();
    } catch (const CublasError& error) {
      (void)cudaGetLastError();  // libtorch throws what it finds there after its next kernel
      if (!out_of_memory(error) || !patience.again()) throw;
    }
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const {
    (void)destroy(object);
  }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

Handle make_handle() {
  cublasLtHandle_t handle = nullptr;
  with_memory([&] { SS_CUBLAS(cublasLtCreate(&handle)); });
  return Handle(handle);
}

/// cuBLASLt counts by columns: the rows of ours are its columns, which lie one after the other.
Layout layout(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  SS_CUBLAS(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(columns),
                                       static_cast<uint64_t>(rows), columns));
  return Layout(made);
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  SS_CUBLAS(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  SS_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}
template <class T>
T config_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  SS_CUBLAS(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, nullptr));
  return value;
}

/// Of an address, in bytes, at most 16: no kernel asks for more, and so it does not depend on where
/// a buffer lies, only on where in it a matrix begins.
uint32_t alignment(const void* data) {
  return 1u << std::min(4, std::countr_zero(reinterpret_cast<uintptr_t>(data)));
}

const char* text_of(Fp8Kind kind) {
  switch (kind) {
    case Fp8Kind::activation:
      return "activation";
    case Fp8Kind::weight:
      return "weight";
    case Fp8Kind::gradient:
      break;
  }
  return "gradient";
}

/// What the choice of an algorithm depends on.
struct Product {
  Transpose transpose_a, transpose_b;
  int64_t m, n, k;
  uint32_t align_a, align_b, align_c;
  bool accumulate;
  std::optional<Fp8Kind> a = {}, b = {};  // none: of the backend's precision
  auto operator<=>(const Product&) const = default;

  std::string text(DType dtype) const {
    std::string text = std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) +
                       (dtype == DType::f32 ? ", fp32, " : ", bf16, ") +
                       (transpose_a == Transpose::no ? "n" : "t") +
                       (transpose_b == Transpose::no ? "n" : "t");
    if (a && b) text += std::string(", fp8 ") + text_of(*a) + " by " + text_of(*b);
    if (std::min({align_a, align_b, align_c}) < 16)
      text += ", aligned to " + std::to_string(align_a) + "-" + std::to_string(align_b) + "-" +
              std::to_string(align_c);
    return text + (accumulate ? ", added" : "");
  }
};

/// Where a product's matrices lie; scales: of factors in fp8.
struct Operands {
  const void *a, *b;
  void* c;
  const float *scales_of_a = nullptr, *scales_of_b = nullptr;
};

struct Plan {
  Operation operation;
  Layout left, right, out;  // cuBLASLt's: our b, a and c
  cublasLtMatmulAlgo_t algorithm{};
};

/// As text, for the run's choices.
std::string hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
    text += digits;
  }
  return text;
}

/// Of other text than hex()'s: zeros or numbers that cuBLASLt refuses.
cublasLtMatmulAlgo_t from_hex(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  for (size_t i = 0; i < std::size(algorithm.data) && 16 * i < text.size(); ++i)
    algorithm.data[i] = std::strtoull(text.substr(16 * i, 16).c_str(), nullptr, 16);
  return algorithm;
}

}  // namespace

struct Gemm::Impl {
  Impl(DType dtype_, cudaStream_t stream_, const ChosenAlgorithms* chosen_)
      : dtype(dtype_), stream(stream_), chosen(chosen_), handle(make_handle()) {
    Result<void*> memory_made = memory.allocate(kWorkspaceBytes);
    if (!memory_made.ok()) throw CudaError(memory_made.status().message());
    workspace = *memory_made;
  }

  static void set_scales(const Plan& plan, const Operands& at) {
    if (!at.scales_of_a) return;
    set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.scales_of_b);
    set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.scales_of_a);
  }

  Plan plan_of(const Product& p, const Operands& at) const {
    const cudaDataType_t type = dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
    const auto type_of = [type](std::optional<Fp8Kind> kind) {
      return !kind ? type : fp8_format(*kind) == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    };
    const auto scale_mode = [](Fp8Kind kind) -> int32_t {
      return fp8_square(kind) ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                              : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    };
    const bool a_turned = p.transpose_a == Transpose::yes,
               b_turned = p.transpose_b == Transpose::yes;
    cublasLtMatmulDesc_t made = nullptr;
    SS_CUBLAS(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Plan plan{Operation(made), layout(type_of(p.b), b_turned ? p.n : p.k, b_turned ? p.k : p.n),
              layout(type_of(p.a), a_turned ? p.k : p.m, a_turned ? p.m : p.k),
              layout(type, p.m, p.n)};
    // c^T = op(b)^T op(a)^T, and by columns each matrix already is its transpose.
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, int32_t{b_turned ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, int32_t{a_turned ? CUBLAS_OP_T : CUBLAS_OP_N});
    if (p.a && p.b) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(*p.b));
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(*p.a));
    }
    set_scales(plan, at);
    return plan;
  }

  /// Why the GPU cannot compute the product by this algorithm; "" if it can.
  std::string refusal(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(
        handle.get(), plan.operation.get(), plan.left.get(), plan.right.get(), plan.out.get(),
        plan.out.get(), &algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS) return cublasLtGetStatusName(status);
    if (result.workspaceSize <= kWorkspaceBytes) return "";
    return "it needs a workspace of " + std::to_string(result.workspaceSize) + " bytes";
  }

  /// In cuBLASLt's order, the one that it takes for the fastest first. All accumulate in fp32: the
  /// other schemes add parts of the sums in the type of the result.
  std::vector<cublasLtMatmulAlgo_t> candidates(const Product& p, const Plan& plan) const {
    cublasLtMatmulPreference_t made = nullptr;
    SS_CUBLAS(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_b);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_a);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_c);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_c);
    cublasLtMatmulHeuristicResult_t found[kCandidates];
    int count = 0;
    SS_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle.get(), plan.operation.get(), plan.left.get(),
                                             plan.right.get(), plan.out.get(), plan.out.get(),
                                             preference.get(), kCandidates, found, &count));
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i)
      if (found[i].state == CUBLAS_STATUS_SUCCESS && refusal(plan, found[i].algo).empty())
        algorithms.push_back(found[i].algo);
    if (algorithms.empty()) throw CudaError("cuBLASLt has no algorithm for " + p.text(dtype));
    return algorithms;
  }

  void launch(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Operands& at,
              bool accumulate) {
    const float one = 1, keep = accumulate ? 1 : 0;
    set_scales(plan, at);
    SS_CUBLAS(cublasLtMatmul(handle.get(), plan.operation.get(), &one, at.b, plan.left.get(), at.a,
                             plan.right.get(), &keep, at.c, plan.out.get(), at.c, plan.out.get(),
                             &algorithm, workspace, kWorkspaceBytes, stream));
  }

  /// Measures on the operands themselves; c becomes the product.
  cublasLtMatmulAlgo_t measure(const Product& p, const Plan& plan, const Operands& at) {
    const std::vector<cublasLtMatmulAlgo_t> algorithms = candidates(p, plan);
    std::vector<Candidate> ways;
    for (const cublasLtMatmulAlgo_t& each : algorithms) {
      const auto id = config_of<int32_t>(each, CUBLASLT_ALGO_CONFIG_ID);
      const auto tile = config_of<uint32_t>(each, CUBLASLT_ALGO_CONFIG_TILE_ID);
      const auto parts = config_of<int32_t>(each, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
      ways.push_back({std::to_string(ways.size() + 1) + " (id " + std::to_string(id) + ", tile " +
                          std::to_string(tile) + ", parts of k " + std::to_string(parts) + ")",
                      [&] { launch(plan, each, at, false); }});
    }
    const Fastest best = fastest(stream, ways, out_of_memory);
    std::fprintf(stderr, "product %s: %s; %s is used\n", p.text(dtype).c_str(), best.told.c_str(),
                 ways[best.index].name.c_str());
    return algorithms[best.index];
  }

  /// BACKEND-2. A product that is added takes cuBLASLt's first choice: measuring it would destroy c.
  cublasLtMatmulAlgo_t choose(const Product& p, const Plan& plan, const Operands& at) {
    if (!chosen) return candidates(p, plan).front();
    const std::string name = p.text(dtype);
    const cublasLtMatmulAlgo_t algorithm = from_hex(chosen->choose(name, [&] {
      return hex(p.accumulate ? candidates(p, plan).front() : measure(p, plan, at));
    }));
    if (const std::string why = refusal(plan, algorithm); !why.empty())
      throw CudaError("the GPU does not take the algorithm in " + chosen->file_of(name) + " (" +
                      why + "): remove the file to choose again");
    return algorithm;
  }

  void multiply(const Product& p, const Operands& at) {
    with_memory([&] {
      try {
        auto plan = plans.find(p);
        if (plan == plans.end()) {
          Plan made = plan_of(p, at);
          made.algorithm = choose(p, made, at);
          plan = plans.emplace(p, std::move(made)).first;
        }
        launch(plan->second, plan->second.algorithm, at, p.accumulate);
      } catch (const CublasError& error) {
        throw CublasError(error.status, text(p) + ": " + error.what());
      }
    });
  }

  /// For an error.
  std::string text(const Product& p) const {
    const std::string name = p.text(dtype);
    return "product " + name +
           (chosen && plans.contains(p) ? " by the algorithm in " + chosen->file_of(name) : "");
  }

  const DType dtype;
  const cudaStream_t stream;
  const ChosenAlgorithms* const chosen;
  const Handle handle;
  DeviceMemory memory;
  void* workspace = nullptr;
  std::map<Product, Plan> plans;
};

Gemm::Gemm(DType dtype, cudaStream_t stream, const ChosenAlgorithms* chosen)
    : impl_(std::make_unique<Impl>(dtype, stream, chosen)) {}
Gemm::~Gemm() = default;

void Gemm::load() {
  (void)make_handle();
}

void Gemm::run(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
               const void* a, const void* b, void* c, bool accumulate) {
  impl_->multiply(
      {transpose_a, transpose_b, m, n, k, alignment(a), alignment(b), alignment(c), accumulate},
      {a, b, c});
}

void Gemm::run_fp8(int64_t m, int64_t n, int64_t k, const Fp8Factor& a, const Fp8Factor& b, void* c,
                   bool accumulate) {
  impl_->multiply({Transpose::no, Transpose::yes, m, n, k, alignment(a.at.values),
                   alignment(b.at.values), alignment(c), accumulate, a.kind, b.kind},
                  {a.at.values, b.at.values, c, a.at.scales, b.at.scales});
}

}  // namespace simplescale::cuda
