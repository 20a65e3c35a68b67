// Compares factors of products in fp8 with the CPU's (model/cpu/fp8.hpp): on a GPU, or emulated on
// the CPU (emulation.hpp).
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "model/cpu/fp8.hpp"
#include "tests/gpu/device_values.hpp"

using namespace simplescale;
using namespace simplescale::testing;
using cuda::Bf16;
namespace reference = simplescale::cuda::reference;

namespace {

constexpr cudaStream_t kStream = nullptr;

/// The number that a byte of fp8 stands for, NaN for infinity, too.
float from_fp8(Fp8 format, uint8_t byte) {
  const int mantissa = format == Fp8::e4m3 ? 3 : 2, bias = format == Fp8::e4m3 ? 7 : 15;
  const int exponents = 1 << (7 - mantissa), ones = (1 << mantissa) - 1;
  const int exponent = (byte & 0x7f) >> mantissa, digits = byte & ones;
  if (exponent == exponents - 1 && (format == Fp8::e5m2 || digits == ones)) return std::nanf("");
  const float value = exponent == 0
                          ? std::ldexp(float(digits), 1 - bias - mantissa)
                          : std::ldexp(float(digits + ones + 1), exponent - bias - mantissa);
  return byte & 0x80 ? -value : value;
}

/// A matrix in fp8 and its scales, (rows, columns).
struct Fp8Matrix {
  Fp8Matrix(cuda::Fp8Kind kind_, int64_t rows_, int64_t columns_)
      : kind(kind_),
        rows(rows_),
        columns(columns_),
        values(none<uint8_t>(rows * columns)),
        scales(none<float>(cuda::fp8_scale_count(cuda::fp8_square(kind), rows, columns))) {}
  cuda::Fp8Values at() const { return {values.data(), scales.data()}; }
  /// (row, column), whose block's scale lies where cuBLAS's manual says.
  std::vector<float> numbers() const {
    std::vector<float> numbers;
    const auto bytes = values.host();
    const auto of_blocks = scales.host();
    const int64_t in_row = ((columns + 127) / 128 + 3) / 4 * 4;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t scale =
            kind == cuda::Fp8Kind::weight ? r / 128 * in_row + c / 128 : c / 128 * rows + r;
        numbers.push_back(
            from_fp8(cuda::fp8_format(kind), bytes[static_cast<size_t>(r * columns + c)]) *
            of_blocks[static_cast<size_t>(scale)]);
      }
    return numbers;
  }
  const cuda::Fp8Kind kind;
  const int64_t rows, columns;
  const Values<uint8_t> values;
  const Values<float> scales;
};

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("kernels: factors in fp8, and their transposes, have the CPU's values") {
    using cuda::Fp8Kind;
    const auto test = [](auto zero, Fp8Kind kind, int64_t rows, int64_t columns) {
      using T = decltype(zero);
      INFO("kind = ", static_cast<int>(kind), ", rows = ", rows, ", columns = ", columns);
      std::vector<T> x = some<T>(rows * columns);
      std::vector<float> wide;
      for (size_t i = 0; i < x.size(); ++i) {  // magnitudes that differ much
        reference::assign(x[i],
                          double{reference::value(x[i])} * std::exp2(double(i * i % 37) - 18));
        wide.push_back(reference::value(x[i]));
      }
      const Values<T> from(x);
      const Fp8Matrix straight(kind, rows, columns), turned(kind, columns, rows),
          same_straight(kind, rows, columns), same_turned(kind, columns, rows);
      cuda_ok(cuda::to_fp8(kStream, kind, rows, columns, from.data(), straight.at(), turned.at()));
      cuda_ok(cuda::to_fp8(kStream, kind, rows, columns, from.data(), same_straight.at(), {}));
      cuda_ok(cuda::to_fp8(kStream, kind, rows, columns, from.data(), {}, same_turned.at()));
      const auto expected = [&](cpu::Fp8Blocks blocks) {
        std::vector<float> rounded(wide.size());
        cpu::round_to_fp8(cuda::fp8_format(kind),
                          cuda::fp8_square(kind) ? cpu::Fp8Blocks::square : blocks, rows, columns,
                          wide.data(), columns, rounded.data());
        return rounded;
      };
      CHECK(straight.numbers() == expected(cpu::Fp8Blocks::row));
      std::vector<float> back(wide.size());
      const auto numbers = turned.numbers();
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          back[static_cast<size_t>(r * columns + c)] = numbers[static_cast<size_t>(c * rows + r)];
      CHECK(back == expected(cpu::Fp8Blocks::column));
      CHECK(same_bits(straight.values.host(), same_straight.values.host()));
      CHECK(same_bits(straight.scales.host(), same_straight.scales.host()));
      CHECK(same_bits(turned.values.host(), same_turned.values.host()));
      CHECK(same_bits(turned.scales.host(), same_turned.scales.host()));
    };
    for (const Fp8Kind kind : {Fp8Kind::activation, Fp8Kind::weight, Fp8Kind::gradient})
      for (const auto& [rows, columns] : {std::pair{4, 4}, {128, 128}, {16, 400}, {272, 144}}) {
        test(float{}, kind, rows, columns);
        test(Bf16{}, kind, rows, columns);
      }
  }

  TEST_CASE("kernels: in fp8 zeros stay zero, and what is not finite does not become finite") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const auto kind :
         {cuda::Fp8Kind::activation, cuda::Fp8Kind::weight, cuda::Fp8Kind::gradient})
      for (const float bad : {0.0f, kInfinity, -kInfinity, std::nanf("")}) {
        const Values<float> x({0, bad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
        const Fp8Matrix straight(kind, 4, 4), turned(kind, 4, 4);
        cuda_ok(cuda::to_fp8(kStream, kind, 4, 4, x.data(), straight.at(), turned.at()));
        const auto a = straight.numbers(), b = turned.numbers();
        for (size_t i = 0; i < 16; ++i) {
          CHECK((i == 1 && !std::isfinite(bad) ? std::isnan(a[i]) : a[i] == 0));
          CHECK((i == 4 && !std::isfinite(bad) ? std::isnan(b[i]) : b[i] == 0));
        }
      }
  }
}
