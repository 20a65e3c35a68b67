// Compares fp8 values with libtorch's, and blocks with a plain reference in double.
#include "model/cpu/fp8.hpp"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace simplescale::cpu {
namespace {

constexpr Fp8 kFormats[] = {Fp8::e4m3, Fp8::e5m2};

float of_torch(Fp8 format, float value) {
  return format == Fp8::e4m3 ? static_cast<float>(c10::Float8_e4m3fn(value))
                             : static_cast<float>(c10::Float8_e5m2(value));
}

/// Random values of very different magnitudes.
std::vector<float> values(int64_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal, exponent(0, 6);
  std::vector<float> all(static_cast<size_t>(count));
  for (float& value : all) value = normal(random) * std::exp2(exponent(random));
  return all;
}

/// The definition, value by value: the block's largest magnitude, its scale, torch's rounding.
std::vector<float> expected(Fp8 format, int64_t height, int64_t width, int64_t rows,
                            int64_t columns, const std::vector<float>& from, int64_t ld) {
  const double most = format == Fp8::e4m3 ? 448 : 57344;
  std::vector<float> to;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double largest = 0;
      const int64_t top = r / height * height, left = c / width * width;
      for (int64_t i = top; i < std::min(rows, top + height); ++i)
        for (int64_t k = left; k < std::min(columns, left + width); ++k)
          largest = std::max(largest, std::abs(double{from[size_t(i * ld + k)]}));
      const double scale = largest > 0 ? std::exp2(std::floor(std::log2(most / largest))) : 1;
      const double value = double{from[size_t(r * ld + c)]} * scale;
      to.push_back(float(double{of_torch(format, float(value))} / scale));
    }
  return to;
}

}  // namespace

TEST_SUITE("fp8") {
  TEST_CASE("fp8: values are rounded as torch's float8_e4m3fn and float8_e5m2, bit for bit") {
    // All upper halves of fp32, with lower halves at, beside and between the ties of both formats.
    for (const Fp8 format : kFormats) {
      int differ = 0;
      for (uint32_t upper = 0; upper <= 0xffff; ++upper)
        for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
          const auto value = std::bit_cast<float>(upper << 16 | lower);
          const float ours = to_fp8(format, value), theirs = of_torch(format, value);
          const bool same = std::isnan(theirs)
                                ? std::isnan(ours)
                                : std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(theirs);
          if (!same) ++differ;
        }
      CAPTURE(static_cast<int>(format));
      CHECK(differ == 0);
    }
  }

  TEST_CASE("fp8: each block has the largest power of two that fits, and keeps its own range") {
    struct {
      Fp8Blocks blocks;
      int64_t height, width;
    } const kinds[] = {
        {Fp8Blocks::row, 1, 128}, {Fp8Blocks::column, 128, 1}, {Fp8Blocks::square, 128, 128}};
    constexpr int64_t kRows = 131, kColumns = 260, kLd = 263;
    const std::vector<float> from = values(kRows * kLd);
    for (const Fp8 format : kFormats)
      for (const auto& [blocks, height, width] : kinds) {
        INFO("height = ", height, ", width = ", width);
        std::vector<float> to(kRows * kColumns);
        round_to_fp8(format, blocks, kRows, kColumns, from.data(), kLd, to.data());
        CHECK(to == expected(format, height, width, kRows, kColumns, from, kLd));
      }
  }

  TEST_CASE("fp8: values in bf16 are rounded in place to the same values as in fp32") {
    constexpr int64_t kRows = 5, kColumns = 300;
    std::vector<float> wide = values(kRows * kColumns);
    std::vector<Bf16> narrow;
    for (float& value : wide) {
      narrow.push_back({f32_to_bf16(value)});
      value = to_f32(narrow.back());
    }
    for (const Fp8 format : kFormats) {
      std::vector<float> a = wide;
      std::vector<Bf16> b = narrow;
      round_to_fp8(format, Fp8Blocks::row, kRows, kColumns, a.data(), kColumns, a.data());
      round_to_fp8(format, Fp8Blocks::row, kRows, kColumns, b.data(), kColumns, b.data());
      CHECK(std::ranges::equal(a, b, {}, {}, [](Bf16 value) { return to_f32(value); }));
    }
  }

  TEST_CASE("fp8: a largest magnitude of 448 or 57344 times a power of two needs no other scale") {
    for (const Fp8 format : kFormats)
      for (const float factor : {1.0f, 0x1p-100f, 0x1p-130f, 0x1p100f}) {
        float block[2] = {(format == Fp8::e4m3 ? 448.0f : 57344.0f) * factor, 0};
        block[1] = std::nextafter(block[0], 0.0f);
        float to[2];
        round_to_fp8(format, Fp8Blocks::row, 1, 2, block, 2, to);
        CHECK(to[0] == block[0]);
        CHECK(to[1] == block[0]);
      }
  }

  TEST_CASE("fp8: zeros stay zero, and what is not finite does not become finite") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const Fp8 format : kFormats)
      for (const float bad : {0.0f, kInfinity, -kInfinity, std::nanf("")}) {
        const float from[3] = {0, bad, 0};
        float to[3] = {1, 1, 1};
        round_to_fp8(format, Fp8Blocks::row, 1, 3, from, 3, to);
        CHECK(to[0] == 0);
        CHECK(std::isfinite(to[1]) == std::isfinite(bad));
        CHECK(to[2] == 0);
      }
  }
}

}  // namespace simplescale::cpu
