// The element types of the CPU kernels: float, and bf16 as a type of its own so that overloads tell
// them apart.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.hpp"

namespace simplescale::cpu {

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
