// Which sample is trained in which step and by which trainer. Pure functions, which every node
// computes without communication. The order of samples depends on the seed and their number only,
// never on the layout (JOB-2).
#pragma once

#include <cstdint>

#include "runtime/training/batch_schedule.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale {

/// The order in which the samples of a data set are trained: a new keyed permutation every epoch,
/// by a Feistel network over the smallest power of four >= n, applied until the result is below n
/// (cycle walking).
class SampleOrder {
 public:
  SampleOrder() = default;
  /// samples: of an epoch, at least 1. shuffle = false: every epoch in file order.
  SampleOrder(uint64_t samples, uint64_t seed, bool shuffle, SkippedSamples skipped = {});

  /// Position in the data set, in [0, samples), of global sample `index`, counted from the start of
  /// training. An epoch has `samples` consecutive indices and visits each position exactly once.
  uint64_t position(uint64_t index) const;
  /// The position of the sample that is trained at a place (skipped_samples.hpp).
  uint64_t position_at(uint64_t place) const { return position(skipped_.sample_at(place)); }
  uint64_t epoch(uint64_t index) const { return index / samples_; }
  uint64_t samples() const { return samples_; }

 private:
  uint64_t samples_ = 1, seed_ = 0;
  bool shuffle_ = false;
  int half_bits_ = 1;
  SkippedSamples skipped_;
};

/// A step's batch: rows of `shards` micro-batches, divided among `groups` groups (sharding.hpp).
/// The samples of a step do not depend on groups. Steps are numbered from 1.
struct BatchLayout {
  uint64_t groups = 1, shards = 1;
  uint64_t micro_batch_size = 1;  // samples
  BatchSchedule batch;            // whole rows

  uint64_t rows(uint64_t step) const { return batch.size(step) / (shards * micro_batch_size); }
  RowRange rows(uint64_t step, uint64_t group) const {
    return rows_of_group(rows(step), groups, group);
  }
  bool operator==(const BatchLayout&) const = default;
};

/// Place (skipped_samples.hpp) of the first of the micro_batch_size samples of accumulation k of
/// the trainer of `shard` in `group`.
inline uint64_t first_sample(const BatchLayout& layout, uint64_t step, uint64_t group,
                             uint64_t shard, uint64_t k) {
  return layout.batch.samples(step - 1) +
         leaf_of(layout.rows(step, group), k, layout.shards, shard) * layout.micro_batch_size;
}

}  // namespace simplescale
