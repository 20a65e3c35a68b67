// The learning rate of a step. Pure.
#pragma once

#include <cstdint>

namespace simplescale {

struct LearningRate {
  double peak = 4e-4, minimum = 4e-5;
  uint64_t warmup_steps = 0,
           steps = 1;  // steps: of the whole run
};

/// Linear warm-up, then a cosine (arXiv 1608.03983). step is 1-based; with s = step - 1:
/// s < warmup: peak (s + 1) / warmup; then minimum + (peak - minimum) / 2 (1 + cos(pi (s - warmup)
/// / (steps - warmup))); the minimum from s = steps on.
float learning_rate_at(uint64_t step, const LearningRate& schedule);

}  // namespace simplescale
