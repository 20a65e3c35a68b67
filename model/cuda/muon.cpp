// Muon on the GPU: momentum, orthogonalization and update (backend.hpp).
#include <algorithm>

#include "model/cuda/check.hpp"
#include "model/cuda/cuda_backend.hpp"

namespace simplescale::cuda {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
}

template <class T>
void CudaBackend<T>::muon_momentum(const Muon& o, std::span<const ParameterRun> runs,
                                   float* gradient, const void* from_avg, void* to_avg) {
  for (const ParameterRun& run : runs) {
    const auto count = static_cast<int64_t>(run.count);
    const size_t at = run.first;
    if (o.moments.dtype == DType::f32)
      SS_CUDA(cuda::muon_momentum(stream_, count, o.momentum, o.gradient_scale, gradient + at,
                                  static_cast<const float*>(from_avg) + at,
                                  static_cast<float*>(to_avg) + at));
    else
      SS_CUDA(cuda::muon_momentum(
          stream_, count, o.momentum, o.gradient_scale, {o.moments.key, run.element}, gradient + at,
          static_cast<const Bf16*>(from_avg) + at, static_cast<Bf16*>(to_avg) + at));
  }
}

template <class T>
void CudaBackend<T>::muon_update(const Muon& o, std::span<const ParameterRun> runs,
                                 const void* update, const float* from_params,
                                 const void* from_avg_sq, float* to_params, void* to_avg_sq) {
  const size_t bytes = bytes_of(o.moments.dtype);
  for (const ParameterRun& run : runs) {
    SS_CUDA(cuda::muon_update(stream_, static_cast<int64_t>(run.count), muon_keep(o, run),
                              muon_step(o, run), static_cast<const T*>(update) + run.first,
                              from_params + run.first, to_params + run.first));
    if (to_avg_sq != from_avg_sq)
      copy(static_cast<char*>(to_avg_sq) + run.first * bytes,
           static_cast<const char*>(from_avg_sq) + run.first * bytes, run.count * bytes);
  }
}

template <class T>
void CudaBackend<T>::orthogonalize(int64_t rows, int64_t columns, void* matrix) {
  SS_ASSERT(options_.muon);
  const bool tall = rows > columns;
  const int64_t side = std::min(rows, columns), count = rows * columns;
  T* const x = static_cast<T*>(matrix);
  const auto bytes = static_cast<size_t>(normalize_scratch(count)) * sizeof(double);
  SS_CUDA(normalize(stream_, count, kMuonEpsilon, x, static_cast<double*>(results(bytes))));
  for (int step = 0; step < kMuonSteps; ++step) {
    if (tall)
      gemm_.run(kYes, kNo, side, side, rows, x, x, gram_);
    else
      gemm_.run(kNo, kYes, side, side, columns, x, x, gram_);
    gemm_.run(kNo, kNo, side, side, side, gram_, gram_, muon_product_);
    SS_CUDA(combine(stream_, side * side, kMuonB, gram_, kMuonC, muon_product_, polynomial_));
    if (tall)
      gemm_.run(kNo, kNo, rows, columns, side, x, polynomial_, muon_product_);
    else
      gemm_.run(kNo, kNo, rows, columns, side, polynomial_, x, muon_product_);
    SS_CUDA(combine(stream_, count, kMuonA, x, 1.0f, muon_product_, x));
  }
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace simplescale::cuda
