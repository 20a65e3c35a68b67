// Which sample is trained in which step and by which trainer. Pure functions, which every node
// computes without communication. The order of samples depends on the seed and their number only,
// never on the layout.
#pragma once

#include <cstdint>

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

/// A step's batch: `rows` rows of `shards` micro-batches, divided among `groups` groups
/// (sharding.hpp). The samples of a step do not depend on groups.
struct BatchLayout {
  uint64_t groups = 1, shards = 1, rows = 1;
  uint64_t micro_batch_size = 1;  // samples

  uint64_t global_batch() const { return shards * rows * micro_batch_size; }  // samples per step
  /// Number of micro-batches that each trainer of a group computes per step.
  uint64_t accumulation(uint64_t group) const { return rows_of_group(rows, groups, group).count; }
  bool operator==(const BatchLayout&) const = default;
};

/// leaf_of() (sharding.hpp) for the trainer of `shard` in `group`; accumulation: k.
inline uint64_t leaf_of(const BatchLayout& layout, uint64_t group, uint64_t shard,
                        uint64_t accumulation) {
  return leaf_of(rows_of_group(layout.rows, layout.groups, group), accumulation, layout.shards,
                 shard);
}

/// Place (skipped_samples.hpp) of the first of a leaf's micro_batch_size samples. step: from 0.
inline uint64_t first_sample(const BatchLayout& layout, uint64_t step, uint64_t leaf) {
  return step * layout.global_batch() + leaf * layout.micro_batch_size;
}

}  // namespace simplescale
