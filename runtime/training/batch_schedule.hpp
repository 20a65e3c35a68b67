// How many samples each step trains (train.global_batch_size, train.batch_warmup). Steps are
// numbered from 1; samples are places (skipped_samples.hpp). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace simplescale {

class BatchSchedule {
 public:
  /// Steps of `size` samples until the run has trained `until` samples or more.
  struct Stage {
    uint64_t size = 1, until = 0;
  };
  /// Consecutive steps of one size, until the next run of steps.
  struct Steps {
    uint64_t first = 1;   // step
    uint64_t before = 0;  // samples of all earlier steps
    uint64_t size = 1;    // samples per step, at least 1
    bool operator==(const Steps&) const = default;
  };

  /// After the warm-up each step has `size` samples. The ends of the stages ascend. A stage that ends
  /// within the step before it has no step.
  explicit BatchSchedule(uint64_t size = 1, std::span<const Stage> warmup = {});

  /// Samples of a step.
  uint64_t size(uint64_t step) const { return of(step).size; }
  /// Samples that steps 1 to `step` train together.
  uint64_t samples(uint64_t step) const;
  /// The most steps that train no more than this number of samples together.
  uint64_t steps_within(uint64_t samples) const;
  /// The fewest steps that train at least this number of samples together.
  uint64_t steps_to(uint64_t samples) const;
  /// At least one; their sizes differ from one to the next.
  const std::vector<Steps>& runs() const { return runs_; }
  bool operator==(const BatchSchedule&) const = default;

 private:
  const Steps& of(uint64_t step) const;
  std::vector<Steps> runs_;
};

}  // namespace simplescale
