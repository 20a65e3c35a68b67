// The element types of the CPU kernels: float and Bf16, a type of its own so that functions can be
// overloaded.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.hpp"

namespace simplescale::cpu {

/// A bfloat16 as bits.
struct Bf16 {
  uint16_t bits;
};

inline float to_f32(float value) {
  return value;
}
inline float to_f32(Bf16 value) {
  return bf16_to_f32(value.bits);
}

}  // namespace simplescale::cpu
