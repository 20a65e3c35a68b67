// Muon on the CPU: momentum, orthogonalization and update (backend.hpp).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/cpu/cpu_backend.hpp"

namespace simplescale::cpu {
namespace {
constexpr auto kNo = Transpose::no, kYes = Transpose::yes;
constexpr int64_t kBlockRows = 64;     // rows of a symmetric product per task
constexpr int64_t kProductRows = 128;  // rows of another product per task
constexpr int kGramSteps = 3;          // steps on one Gram matrix; in bf16, five would diverge
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

/// Only the lower half is computed, then mirrored: a task writes its block of rows up to the diagonal
/// and the same columns above it, which no other task writes.
template <class T>
void CpuBackend<T>::symmetric_product(Transpose a, Transpose b, int64_t side, int64_t inner,
                                      const T* left, const T* right, bool polynomial, T* to) {
  const int64_t ld_left = a == kYes ? side : inner, ld_right = b == kYes ? inner : side;
  pool_.run((side + kBlockRows - 1) / kBlockRows, [&](int64_t task, int) {
    const int64_t first = task * kBlockRows, n = std::min(kBlockRows, side - first);
    const int64_t width = first + n;
    T* const out = to + first * side;
    float* const product = direct(out, muon_product_ + first * side);
    gemm(a, b, n, width, inner, left + first * (a == kYes ? 1 : ld_left), ld_left, right, ld_right,
         0, product, side);
    if (polynomial) {
      for (int64_t r = 0; r < n; ++r) {
        product[r * side + first + r] += kMuonA / kMuonC;  // the diagonal
        kernel_.combine(width, kMuonB, left + (first + r) * side, kMuonC, product + r * side,
                        out + r * side);
      }
    } else if (!std::is_same_v<T, float>) {
      kernel_.store(n, width, product, side, out, side);
    }
    for (int64_t c = 0; c < width; ++c)
      for (int64_t r = std::max(first, c + 1); r < width; ++r) to[c * side + r] = to[r * side + c];
  });
}

/// Steps on R = X X^T (of a tall matrix X^T X) instead of on X: a step multiplies X by the symmetric
/// S = a I + b R + c R^2 and so R by S^2, and all these matrices commute. Q is the product of the
/// factors S. Rounding makes small eigenvalues of R negative, and each step multiplies them by a^2;
/// so after kGramSteps steps X becomes Q X, and R is computed from X again.
template <class T>
void CpuBackend<T>::orthogonalize(int64_t rows, int64_t columns, void* matrix) {
  SS_ASSERT(options_.muon);
  const bool tall = rows > columns;
  const int64_t side = std::min(rows, columns);
  T* const x = static_cast<T*>(matrix);
  auto& [gram, factor, next, total] = symmetric_;
  const auto multiply = [&](const T* left, const T* right, bool polynomial, T* to) {
    symmetric_product(kNo, kNo, side, side, left, right, polynomial, to);
  };
  normalize(rows * columns, x);
  for (int step = 0; step < kMuonSteps; ++step) {
    if (step % kGramSteps == 0) {
      if (tall)
        symmetric_product(kYes, kNo, side, rows, x, x, false, gram);
      else
        symmetric_product(kNo, kYes, side, columns, x, x, false, gram);
      multiply(gram, gram, true, total);
    } else {
      const T* const last = step % kGramSteps == 1 ? total : factor;
      multiply(last, gram, false, next);
      multiply(last, next, false, gram);
      multiply(gram, gram, true, factor);
      multiply(factor, total, false, next);
      std::swap(total, next);
    }
    if ((step + 1) % kGramSteps == 0 || step + 1 == kMuonSteps)
      times_symmetric(rows, columns, total, x);
  }
}

/// x = q x, or x q of a tall matrix.
template <class T>
void CpuBackend<T>::times_symmetric(int64_t rows, int64_t columns, const T* q, T* x) {
  const int64_t side = std::min(rows, columns);
  pool_.run((rows + kProductRows - 1) / kProductRows, [&](int64_t task, int) {
    const int64_t first = task * kProductRows, n = std::min(kProductRows, rows - first);
    float* const product = muon_product_ + first * columns;
    if (rows > columns)
      gemm(kNo, kNo, n, columns, side, x + first * columns, columns, q, side, 0, product, columns);
    else
      gemm(kNo, kNo, n, columns, side, q + first * side, side, x, columns, 0, product, columns);
  });
  for_elements(pool_, rows * columns, [&](int64_t first, int64_t n) {
    kernel_.store(1, n, muon_product_ + first, n, x + first, n);
  });
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace simplescale::cpu
