#include "runtime/training/initial_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "runtime/base/splitmix64.hpp"

// Logarithm and sine use IEEE additions, multiplications and divisions only, whose bits are equal
// on every machine. A fused multiply-add would change the bits.
#define SS_EXACT __attribute__((optimize("fp-contract=off")))

namespace simplescale {
namespace {

/// ln(x) for normal x > 0; error below 1e-15. x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
/// ln m = 2 atanh((m - 1) / (m + 1)).
SS_EXACT double exact_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  if (m > std::numbers::sqrt2) {
    m /= 2;
    ++e;
  }
  const double f = (m - 1) / (m + 1), f2 = f * f;
  double series = 0;
  for (int n = 21; n >= 1; n -= 2) series = series * f2 + 1.0 / n;
  return static_cast<double>(e) * std::numbers::ln2 + 2 * f * series;
}

struct SinCos {
  double sine, cosine;
};

/// Sine and cosine of 2 pi u for u in [0, 1): a Taylor series of the angle to the nearest quarter
/// turn, which is at most pi / 4.
SS_EXACT SinCos exact_sincos_of_turns(double u) {
  const int quarter = static_cast<int>(4 * u + 0.5);
  const double x = (u - quarter * 0.25) * (2 * std::numbers::pi), x2 = x * x;
  double sine = 0, cosine = 0;
  for (int n = 17; n >= 3; n -= 2) sine = (sine + 1) * -x2 / (n * (n - 1));
  for (int n = 18; n >= 2; n -= 2) cosine = (cosine + 1) * -x2 / (n * (n - 1));
  sine = x * (sine + 1);
  cosine += 1;
  switch (quarter & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

struct Pair {
  double first, second;
};

/// Two independent normal numbers, from values 2n and 2n + 1 of the generator.
SS_EXACT Pair normal_pair(uint64_t key, uint64_t n) {
  const double u1 = (static_cast<double>(splitmix64_at(key, 2 * n) >> 11) + 0.5) * 0x1p-53;
  const double u2 = static_cast<double>(splitmix64_at(key, 2 * n + 1) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * exact_log(u1));  // IEEE: correctly rounded
  const SinCos turn = exact_sincos_of_turns(u2);
  return {radius * turn.cosine, radius * turn.sine};
}

}  // namespace

double normal_at(uint64_t key, uint64_t element) {
  const Pair pair = normal_pair(key, element / 2);
  return element % 2 == 0 ? pair.first : pair.second;
}

void initial_values(const Unit& unit, uint64_t seed, size_t first, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
  const size_t end = first + values.size();
  for (const Parameter& parameter : unit.parameters) {
    const size_t from = std::max(first, parameter.offset);
    const size_t to = std::min(end, parameter.offset + parameter.count);
    if (from >= to) continue;
    float* out = values.data() + (from - first);
    if (!parameter.is_matrix()) {
      std::fill_n(out, to - from, parameter.is_bias() ? 0.0f : 1.0f);
      continue;
    }
    const uint64_t key =
        splitmix64_mix(splitmix64_mix(seed) ^ ((parameter.id + 1) * 0xd1342543de82ef95u));
    for (size_t element = from - parameter.offset; element < to - parameter.offset;) {
      const Pair pair = normal_pair(key, element / 2);
      if (element % 2 == 0) {
        *out++ = static_cast<float>(pair.first) * kInitialDeviation;
        if (++element == to - parameter.offset) break;
      }
      *out++ = static_cast<float>(pair.second) * kInitialDeviation;
      ++element;
    }
  }
}

}  // namespace simplescale
