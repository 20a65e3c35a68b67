// The element types of tensors that are sent or stored (fp32, bf16) and their conversion.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace simplescale {

enum class DType : uint8_t { f32, bf16 };

constexpr size_t bytes_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}
constexpr const char* to_string(DType dtype) {
  return dtype == DType::f32 ? "float32" : "bfloat16";
}

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// Round to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace simplescale
