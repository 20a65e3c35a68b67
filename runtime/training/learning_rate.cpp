#include "runtime/training/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace simplescale {
namespace {

/// f(done / length), 0 <= done <= length.
double remaining(const LearningRate& rate, int64_t done, int64_t length) {
  const auto a = static_cast<double>(done), b = static_cast<double>(length);
  switch (rate.schedule) {
    case Schedule::cosine:
      return (1 + std::cos(std::numbers::pi * a / b)) / 2;
    case Schedule::linear:
    case Schedule::wsd:
      return 1 - a / b;
    case Schedule::polynomial:
      return std::pow(1 - a / b, rate.power);
    case Schedule::constant:
      return 1;
  }
  return 1;
}

}  // namespace

double LearningRate::at(int64_t step) const {
  double top = peak, bottom = minimum;
  const auto later =
      std::ranges::upper_bound(changes, static_cast<uint64_t>(step) + 1, {}, &RateChange::step);
  if (later != changes.begin()) {
    top = std::prev(later)->peak;
    if (minimum_follows) bottom = top / 10;
  }
  if (step < warmup_steps)
    return top * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step < decay_begin || schedule == Schedule::constant) return top;
  if (step >= steps) return bottom;
  const int64_t done = step - decay_begin + (last_is_minimum ? 1 : 0);
  return bottom + (top - bottom) * remaining(*this, done, steps - decay_begin);
}

}  // namespace simplescale
