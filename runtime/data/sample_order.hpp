// Which sample is read when, and by whom: pure functions that every node computes alone, without
// communication or memory. The order depends on the seed and the number of samples only, never on
// the layout.
#pragma once

#include <cstdint>

#include "runtime/training/sharding.hpp"

namespace simplescale {

/// The order in which a data set's samples are trained: a new keyed permutation every epoch.
/// A Feistel network over the smallest power of four that holds n, walked until it lands below n.
class SampleOrder {
 public:
  SampleOrder() = default;
  /// samples > 0: whole samples of an epoch. shuffle = false: file order, over and over.
  SampleOrder(uint64_t samples, uint64_t seed, bool shuffle);

  /// Position in the data set, in [0, samples), of global sample `index`, counted from the start of
  /// training. Every epoch of `samples` consecutive indices visits each position exactly once.
  uint64_t position(uint64_t index) const;
  uint64_t epoch(uint64_t index) const { return index / samples_; }
  uint64_t samples() const { return samples_; }

 private:
  uint64_t samples_ = 1, seed_ = 0;
  bool shuffle_ = false;
  int half_bits_ = 1;
};

/// How a step's samples are spread: `rows` rows of `shards` micro-batches over `groups` groups. The
/// samples of a step do not depend on groups.
struct BatchLayout {
  uint64_t groups = 1, shards = 1, rows = 1;
  uint64_t micro_batch_size = 1;  // samples

  uint64_t global_batch() const { return shards * rows * micro_batch_size; }  // samples a step
  /// Micro-batches that each trainer of a group computes in a step.
  uint64_t accumulation(uint64_t group) const { return rows_of_group(rows, groups, group).count; }
  bool operator==(const BatchLayout&) const = default;
};

/// leaf_of() of a trainer, given its group (sharding.hpp).
inline uint64_t leaf_of(const BatchLayout& layout, uint64_t group, uint64_t shard,
                        uint64_t accumulation) {
  return leaf_of(rows_of_group(layout.rows, layout.groups, group), accumulation, layout.shards,
                 shard);
}

/// Global index of the first of the micro_batch_size samples that a trainer reads for a leaf.
inline uint64_t first_sample(const BatchLayout& layout, uint64_t step, uint64_t leaf) {
  return step * layout.global_batch() + leaf * layout.micro_batch_size;
}

}  // namespace simplescale
