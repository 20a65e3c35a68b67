// Initial values of parameters, shard by shard. Each value is a function of seed, tensor and
// element, so its bits do not depend on layout, order of calls or mathematics library. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Standard deviation of matrices; Hugging Face's initializer_range.
inline constexpr float kInitialDeviation = 0.02f;

/// values[i] = initial value of element first + i of the unit: norms one, matrices normal(0, 0.02),
/// biases and padding zero.
void initial_values(const Unit& unit, uint64_t seed, size_t first, std::span<float> values);

/// Element `element` of the stream `key` of normal(0, 1) numbers: the Box-Muller transform of a
/// splitmix64 generator that is used as a counter.
double normal_at(uint64_t key, uint64_t element);

}  // namespace simplescale
