// Which sample is trained in which step and by which trainer. Pure functions, which every node
// computes without communication. The order of samples depends on the seed and their number only,
// never on the layout (JOB-2).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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

/// Each step's batch, dealt to the trainers (sharding.hpp). The samples of a step do not depend on
/// the layout. Steps are numbered from 1.
class BatchLayout {
 public:
  BatchLayout() : BatchLayout(1, 1, 1, BatchSchedule()) {}
  /// micro_batch_size: samples; batch: whole micro-batches. weights: as of Shares::by_weight().
  BatchLayout(uint64_t groups, uint64_t shards, uint64_t micro_batch_size, BatchSchedule batch,
              uint64_t wave = 1, std::span<const uint32_t> weights = {})
      : micro_batch_size_(micro_batch_size), batch_(std::move(batch)) {
    for (const BatchSchedule::Steps& run : batch_.runs())
      shares_.push_back(
          Shares::by_weight(run.size / micro_batch_size, weights, groups, shards, wave));
  }

  uint64_t groups() const { return shares_[0].groups(); }
  uint64_t shards() const { return shares_[0].shards(); }
  uint64_t micro_batch_size() const { return micro_batch_size_; }
  const BatchSchedule& batch() const { return batch_; }
  const Shares& shares(uint64_t step) const {
    return shares_[static_cast<size_t>(&batch_.of(step) - batch_.runs().data())];
  }
  bool operator==(const BatchLayout&) const = default;

 private:
  uint64_t micro_batch_size_;
  BatchSchedule batch_;
  std::vector<Shares> shares_;  // of each of batch_.runs()
};

/// Place (skipped_samples.hpp) of the first of the micro_batch_size samples of micro-batch k of the
/// trainer of `shard` in `group`.
inline uint64_t first_sample(const BatchLayout& layout, uint64_t step, uint64_t group,
                             uint64_t shard, uint64_t k) {
  return layout.batch().samples(step - 1) +
         layout.shares(step).leaf(group, shard, k) * layout.micro_batch_size();
}

}  // namespace simplescale
