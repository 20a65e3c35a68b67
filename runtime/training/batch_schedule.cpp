#include "runtime/training/batch_schedule.hpp"

#include <algorithm>

namespace simplescale {

BatchSchedule::BatchSchedule(uint64_t size, std::span<const Stage> warmup) {
  Steps next;
  const auto add = [&](uint64_t samples) {
    next.size = std::max<uint64_t>(1, samples);
    if (runs_.empty() || runs_.back().size != next.size) runs_.push_back(next);
  };
  for (const Stage& stage : warmup) {
    if (stage.until <= next.before) continue;
    add(stage.size);
    const uint64_t steps = (stage.until - next.before - 1) / next.size + 1;
    next.first += steps;
    next.before += steps * next.size;
  }
  add(size);
}

const BatchSchedule::Steps& BatchSchedule::of(uint64_t step) const {
  const auto after =
      std::ranges::upper_bound(runs_, std::max<uint64_t>(1, step), {}, &Steps::first);
  return *std::prev(after);
}

uint64_t BatchSchedule::samples(uint64_t step) const {
  const Steps& run = of(step);
  return run.before + (step + 1 - run.first) * run.size;
}

uint64_t BatchSchedule::steps_within(uint64_t samples) const {
  const auto after = std::ranges::upper_bound(runs_, samples, {}, &Steps::before);
  const Steps& run = *std::prev(after);
  return run.first - 1 + (samples - run.before) / run.size;
}

uint64_t BatchSchedule::steps_to(uint64_t samples) const {
  const uint64_t steps = steps_within(samples);
  return steps + (this->samples(steps) < samples);
}

}  // namespace simplescale
