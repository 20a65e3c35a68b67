#include "runtime/training/stochastic_rounding.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "runtime/base/dtype.hpp"

using namespace simplescale;

namespace {

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

float rounded(float value, uint32_t random) {
  return bf16_to_f32(stochastic_bf16(bits_of(value), random));
}

}  // namespace

TEST_SUITE("stochastic_rounding") {
  TEST_CASE("rounding: over all random bits, the mean of the results is the value") {
    for (const float value : {1.0f, 1.0001f, -3.14159f, 1e-30f, 6.5e-39f, -1e30f, 0.99999f}) {
      const auto low = double{bf16_to_f32(static_cast<uint16_t>(bits_of(value) >> 16))};
      double sum = 0, most = 0;
      for (uint32_t random = 0; random < 65536; ++random) {
        const double error = double{rounded(value, random)} - double{value};
        sum += error;
        most = std::max(most, std::abs(error));
      }
      CHECK(sum == 0);  // every term is exact
      const bool is_bf16 = low == double{value};
      CHECK((most == 0) == is_bf16);
    }
  }

  TEST_CASE("rounding: infinities stay, NaN stays NaN, and so do zeros") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
      CHECK(rounded(infinity, random) == infinity);
      CHECK(rounded(-infinity, random) == -infinity);
      CHECK(bits_of(rounded(-0.0f, random)) == bits_of(-0.0f));
      for (const uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u})
        CHECK(std::isnan(rounded(std::bit_cast<float>(nan), random)));
    }
  }

  TEST_CASE("rounding: the bits of elements, steps, seeds and moments are independent") {
    constexpr uint64_t n = 1 << 20;
    constexpr double variance = (65536.0 * 65536.0 - 1) / 12;
    const RoundingKey key = rounding_key(1, 1);
    const auto of = [&](const RoundingKey& k, uint64_t element, int shift) {
      return (rounding_bits(k, element) >> shift & 0xffff) - 32767.5;
    };
    // (of two numbers): correlations of n pairs have the standard deviation variance / sqrt(n).
    double mean[2] = {}, square[2] = {}, moments = 0, elements = 0, steps = 0, seeds = 0, far = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const double mine = of(key, i, 0);
      for (const int moment : {0, 1}) {
        const double value = of(key, i, 16 * moment);
        mean[moment] += value / n;
        square[moment] += value * value / n;
      }
      moments += mine * of(key, i, 16) / n;
      elements += mine * of(key, i + 1, 0) / n;
      steps += mine * of(rounding_key(1, 2), i, 0) / n;
      seeds += mine * of(rounding_key(2, 1), i, 0) / n;
      far += mine * of(key, i + (uint64_t{1} << 32), 0) / n;
    }
    const double root = std::sqrt(static_cast<double>(n));
    for (const int moment : {0, 1}) {
      CHECK(std::abs(mean[moment]) < 5 * std::sqrt(variance) / root);
      CHECK(square[moment] == doctest::Approx(variance).epsilon(0.005));
    }
    for (const double correlation : {moments, elements, steps, seeds, far})
      CHECK(std::abs(correlation) < 5 * variance / root);
  }

  TEST_CASE("rounding: a second moment with beta2 = 0.999 converges, to nearest it would not") {
    constexpr int steps = 10'000, elements = 500;
    constexpr float square = 0.37f, keep = 0.999f;
    double sum = 0;
    float nearest = 0;
    for (int i = 0; i < elements; ++i) {
      float stored = 0;
      for (int step = 1; step <= steps; ++step) {
        const uint32_t random =
            rounding_bits(rounding_key(9, static_cast<uint64_t>(step)), static_cast<uint64_t>(i));
        stored = rounded(stored * keep + square * (1 - keep), random >> 16);
      }
      sum += double{stored} / elements;
    }
    for (int step = 1; step <= steps; ++step)
      nearest = bf16_to_f32(f32_to_bf16(nearest * keep + square * (1 - keep)));
    CHECK(sum == doctest::Approx(square).epsilon(0.005));
    CHECK(nearest < 0.8f * square);
  }
}
