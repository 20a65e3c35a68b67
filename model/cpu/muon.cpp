// Muon on the CPU: momentum, orthogonalization and update (backend.hpp).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/cpu/cpu_backend.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
constexpr int64_t kBlockRows = arithmetic::kMuonGramRows;       // of a task
constexpr int64_t kProductRows = arithmetic::kMuonProductRows;  // of a task
static_assert(kElements == arithmetic::kMuonNormElements, "normalize() sums each task's squares");
}  // namespace

template <class T>
void CpuBackend<T>::muon_momentum(const Muon& o, std::span<const ParameterRun> runs,
                                  float* gradient, const void* from_avg, void* to_avg) {
  for (const ParameterRun& run : runs)
    for_elements(pool_, static_cast<int64_t>(run.count), [&](int64_t first, int64_t n) {
      const int64_t at = static_cast<int64_t>(run.first) + first;
      if (o.moments.dtype == DType::f32)
        shard_kernel_.muon_momentum(n, o.momentum, o.gradient_scale, gradient + at,
                                    static_cast<const float*>(from_avg) + at,
                                    static_cast<float*>(to_avg) + at);
      else
        shard_kernel_.muon_momentum_bf16(
            n, o.momentum, o.gradient_scale,
            {o.moments.key, run.element + static_cast<uint64_t>(first)}, gradient + at,
            static_cast<const Bf16*>(from_avg) + at, static_cast<Bf16*>(to_avg) + at);
    });
}

template <class T>
void CpuBackend<T>::muon_update(const Muon& o, std::span<const ParameterRun> runs,
                                const void* update, const float* from_params,
                                const void* from_avg_sq, float* to_params, void* to_avg_sq) {
  const auto bytes = static_cast<int64_t>(bytes_of(o.moments.dtype));
  for (const ParameterRun& run : runs)
    for_elements(pool_, static_cast<int64_t>(run.count), [&](int64_t first, int64_t n) {
      const int64_t at = static_cast<int64_t>(run.first) + first;
      kernel_.muon_update(n, muon_keep(o, run), muon_step(o, run),
                          static_cast<const T*>(update) + at, from_params + at, to_params + at);
      if (to_avg_sq != from_avg_sq)
        std::memcpy(static_cast<char*>(to_avg_sq) + at * bytes,
                    static_cast<const char*>(from_avg_sq) + at * bytes,
                    static_cast<size_t>(n * bytes));
    });
}

template <class T>
void CpuBackend<T>::normalize(int64_t count, T* matrix) {
  std::vector<double> sums(static_cast<size_t>((count + kElements - 1) / kElements));
  for_elements(pool_, count, [&](int64_t first, int64_t n) {
    double sum = 0;
    for (int64_t i = first; i < first + n; ++i) {
      const double value = double{to_f32(matrix[i])};
      sum += value * value;
    }
    sums[static_cast<size_t>(first / kElements)] = sum;
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  const auto factor = static_cast<float>(1 / (std::sqrt(sum) + kMuonEpsilon));
  for_elements(pool_, count, [&](int64_t first, int64_t n) {
    float* const values = muon_product_ + first;
    kernel_.widen(n, matrix + first, values);
    kernel_.store_scaled(1, n, values, n, &factor, matrix + first, n);
  });
}

template <class T>
template <class Body>
void CpuBackend<T>::for_lower_blocks(int64_t side, Body body) {
  pool_.run((side + kBlockRows - 1) / kBlockRows, [&](int64_t task, int) {
    const int64_t first = task * kBlockRows, rows = std::min(kBlockRows, side - first);
    body(first, rows, first + rows);
  });
}

template <class T>
void CpuBackend<T>::mirror(int64_t side, T* matrix) {
  for_lower_blocks(side, [&](int64_t first, int64_t rows, int64_t) {
    for (int64_t r = first; r < first + rows; ++r)
      for (int64_t c = r + 1; c < side; ++c) matrix[r * side + c] = matrix[c * side + r];
  });
}

/// Of the two symmetric products A = X X^T (of a tall matrix X^T X) and A^2 only the lower half is
/// computed.
template <class T>
void CpuBackend<T>::orthogonalize(int64_t rows, int64_t columns, void* matrix) {
  SS_ASSERT(options_.muon);
  const bool tall = rows > columns;
  const int64_t side = std::min(rows, columns);
  T* const x = static_cast<T*>(matrix);
  normalize(rows * columns, x);
  for (int step = 0; step < kMuonSteps; ++step) {
    for_lower_blocks(side, [&](int64_t first, int64_t n, int64_t width) {
      T* const a = gram_ + first * side;
      float* const product = direct(a, square_ + first * side);
      if (tall)
        gemm(kYes, kNo, n, width, rows, x + first, columns, x, columns, 0, product, side);
      else
        gemm(kNo, kYes, n, width, columns, x + first * columns, columns, x, columns, 0, product,
             side);
      if (!std::is_same_v<T, float>) kernel_.store(n, width, product, side, a, side);
    });
    mirror(side, gram_);
    for_lower_blocks(side, [&](int64_t first, int64_t n, int64_t width) {
      const T* const a = gram_ + first * side;
      T* const p = polynomial_ + first * side;
      float* const product = direct(p, square_ + first * side);
      gemm(kNo, kNo, n, width, side, a, side, gram_, side, 0, product, side);
      for (int64_t r = 0; r < n; ++r)
        kernel_.combine(width, kMuonB, a + r * side, kMuonC, product + r * side, p + r * side);
    });
    mirror(side, polynomial_);
    pool_.run((rows + kProductRows - 1) / kProductRows, [&](int64_t task, int) {
      const int64_t first = task * kProductRows, n = std::min(kProductRows, rows - first);
      float* const product = muon_product_ + first * columns;
      if (tall)
        gemm(kNo, kNo, n, columns, side, x + first * columns, columns, polynomial_, side, 0,
             product, columns);
      else
        gemm(kNo, kNo, n, columns, side, polynomial_ + first * side, side, x, columns, 0, product,
             columns);
    });
    for_elements(pool_, rows * columns, [&](int64_t first, int64_t n) {
      kernel_.combine(n, kMuonA, x + first, 1, muon_product_ + first, x + first);
    });
  }
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
