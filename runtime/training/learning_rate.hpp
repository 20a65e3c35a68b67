// The learning rate of each step. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/training/rate_change.hpp"

namespace simplescale {

/// How the learning rate falls after the warm-up. wsd (warmup, stable, decay: arXiv 2404.06395)
/// falls linearly, too, but by default only in the last tenth of the run.
enum class Schedule : unsigned char { cosine, linear, polynomial, wsd, constant };

/// Linear warm-up, then constant, then a decay:
///   s < W        lr (s + 1) / W
///   W <= s < D   lr
///   D <= s < S   min + (lr - min) f(x) with x = (s - D) / (S - D), or (s + 1 - D) / (S - D)
///   s >= S       min; constant: lr
/// f(x) is (1 + cos(pi x)) / 2 (cosine), 1 - x (linear, wsd), (1 - x)^power (polynomial), 1
/// (constant). lr is the peak of the newest change that has begun, or the configured peak. The
/// first x is used if the decay takes all steps after the warm-up: its first step has lr, and a
/// step S would have min. The second x is used if the decay has a length of its own (wsd,
/// train.decay_steps): each of its steps is lower than the one before, and the last one has min.
struct LearningRate {
  Schedule schedule = Schedule::cosine;
  double peak = 0, minimum = 0, power = 2;
  int64_t warmup_steps = 0, decay_begin = 0, steps = 1;  // W, D >= W, S
  bool minimum_follows = false;                          // min is a tenth of lr
  bool last_is_minimum = false;                          // the second x
  std::vector<RateChange> changes;                       // made during the run
  /// step: from 0.
  double at(int64_t step) const;
  bool operator==(const LearningRate&) const = default;
};

}  // namespace simplescale
