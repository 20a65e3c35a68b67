// The number of samples of each step (train.global_batch_size, train.batch_warmup). Steps are
// numbered from 1. Samples are counted by place (skipped_samples.hpp). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace simplescale {

class BatchSchedule {
 public:
  /// A stage of the warm-up: steps of `size` samples until the run has trained `until` samples or
  /// more.
  struct Stage {
    uint64_t size = 1, until = 0;
  };
  /// Consecutive steps with the same number of samples.
  struct Steps {
    uint64_t first = 1;   // the first of these steps
    uint64_t before = 0;  // samples of all earlier steps
    uint64_t size = 1;    // samples per step, at least 1
    bool operator==(const Steps&) const = default;
  };

  /// After the warm-up, each step has `size` samples. The stages are in ascending order of `until`.
  /// A stage has no step if the last step before it already passes the stage's end.
  explicit BatchSchedule(uint64_t size = 1, std::span<const Stage> warmup = {});

  /// Samples of a step.
  uint64_t size(uint64_t step) const { return of(step).size; }
  /// Total number of samples of steps 1 to `step`.
  uint64_t samples(uint64_t step) const;
  /// The most steps whose samples together are no more than this number.
  uint64_t steps_within(uint64_t samples) const;
  /// The fewest steps whose samples together are at least this number.
  uint64_t steps_to(uint64_t samples) const;
  /// At least one element; neighbours differ in size.
  const std::vector<Steps>& runs() const { return runs_; }
  /// The element of runs() that a step belongs to.
  const Steps& of(uint64_t step) const;
  bool operator==(const BatchSchedule&) const = default;

 private:
  std::vector<Steps> runs_;
};

}  // namespace simplescale
