#include "model/cpu/fp8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace simplescale::cpu {
namespace {

/// A format's bits of mantissa, the exponent of its smallest normal number, and its largest number,
/// which is 0.875 * 2^max_exponent in both.
struct Format {
  Fp8 format;
  int mantissa, min_exponent, max_exponent;
  bool infinity;
  constexpr float largest() const { return 0.875f * static_cast<float>(1 << max_exponent); }
};
constexpr Format kE4m3{Fp8::e4m3, 3, -6, 9, false}, kE5m2{Fp8::e5m2, 2, -14, 16, true};

constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Without branches, so that the compiler vectorizes loops.
template <Format F>
float rounded(float value) {
  constexpr int kDropped = 23 - F.mantissa;
  constexpr uint32_t kInfinity = 0x7f80'0000;
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits & 0x8000'0000;
  const uint32_t magnitude = bits ^ sign;
  const uint32_t half = (uint32_t{1} << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1);
  const uint32_t normal = (magnitude + half) >> kDropped << kDropped;
  // The last place of this sum is the smallest subnormal number of the format.
  constexpr float kShift = power_of_two(F.min_exponent - F.mantissa + 23);
  const float subnormal = (std::bit_cast<float>(magnitude) + kShift) - kShift;
  uint32_t result = magnitude < std::bit_cast<uint32_t>(power_of_two(F.min_exponent))
                        ? std::bit_cast<uint32_t>(subnormal)
                        : normal;
  const uint32_t too_large = F.infinity && magnitude <= kInfinity ? kInfinity : 0x7fc0'0000;
  result = result > std::bit_cast<uint32_t>(F.largest()) ? too_large : result;
  return std::bit_cast<float>(result | sign);
}

void put(float value, float* to) {
  *to = value;
}
void put(float value, Bf16* to) {
  to->bits = f32_to_bf16(value);
}

template <Format F, class T>
void round_matrix(Fp8Blocks blocks, int64_t rows, int64_t columns, const T* from, int64_t ld,
                  T* to) {
  const int64_t height = blocks == Fp8Blocks::row ? 1 : kFp8Block;
  for (int64_t top = 0; top < rows; top += height)
    for (int64_t left = 0; left < columns; left += kFp8Block) {
      const int64_t bottom = std::min(rows, top + height);
      const int64_t width = std::min(kFp8Block, columns - left);
      float largest[kFp8Block] = {}, scale[kFp8Block], inverse[kFp8Block];
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t c = 0; c < width; ++c)
          largest[c] = std::max(largest[c], std::abs(to_f32(from[r * ld + left + c])));
      if (blocks != Fp8Blocks::column)
        std::fill_n(largest, width, *std::max_element(largest, largest + width));
      for (int64_t c = 0; c < width; ++c) {
        if (c > 0 && largest[c] == largest[c - 1]) {
          scale[c] = scale[c - 1], inverse[c] = inverse[c - 1];
          continue;
        }
        const int exponent = fp8_scale_exponent(F.format, std::bit_cast<uint32_t>(largest[c]));
        scale[c] = power_of_two(exponent), inverse[c] = power_of_two(-exponent);
      }
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t c = 0; c < width; ++c)
          put(rounded<F>(to_f32(from[r * ld + left + c]) * scale[c]) * inverse[c],
              to + r * columns + left + c);
    }
}

}  // namespace

float to_fp8(Fp8 format, float value) {
  return format == Fp8::e4m3 ? rounded<kE4m3>(value) : rounded<kE5m2>(value);
}

template <class T>
void round_to_fp8(Fp8 format, Fp8Blocks blocks, int64_t rows, int64_t columns, const T* from,
                  int64_t ld, T* to) {
  if (format == Fp8::e4m3)
    round_matrix<kE4m3>(blocks, rows, columns, from, ld, to);
  else
    round_matrix<kE5m2>(blocks, rows, columns, from, ld, to);
}

template void round_to_fp8(Fp8, Fp8Blocks, int64_t, int64_t, const float*, int64_t, float*);
template void round_to_fp8(Fp8, Fp8Blocks, int64_t, int64_t, const Bf16*, int64_t, Bf16*);

}  // namespace simplescale::cpu
