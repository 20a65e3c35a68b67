#include "model/engine/learning_rate.hpp"

#include <cmath>
#include <numbers>

namespace simplescale {

float learning_rate_at(uint64_t step, const LearningRate& schedule) {
  const uint64_t s = step > 0 ? step - 1 : 0;
  const LearningRate& c = schedule;
  if (s < c.warmup_steps)
    return static_cast<float>(c.peak * static_cast<double>(s + 1) /
                              static_cast<double>(c.warmup_steps));
  if (s >= c.steps) return static_cast<float>(c.minimum);
  const double part =
      static_cast<double>(s - c.warmup_steps) / static_cast<double>(c.steps - c.warmup_steps);
  return static_cast<float>(c.minimum +
                            (c.peak - c.minimum) / 2 * (1 + std::cos(std::numbers::pi * part)));
}

}  // namespace simplescale
