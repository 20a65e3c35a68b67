// How parameters are sharded inside a group, and which part of a step's batch each trainer
// computes. Groups are replicas of each other. Pure functions, any thread.
#pragma once

#include <cstdint>

namespace simplescale {

enum class Sharding : unsigned char {
  full_shard,     // a unit is gathered for forward, freed, and gathered again for backward
  shard_grad_op,  // a unit is gathered once per step; gradients and optimizer state are sharded
  no_shard,       // a group is one trainer; nothing is gathered
};

/// Rows (accumulation steps) [first, first + count) of a step's batch. A step has K rows. A row has
/// S micro-batches, one for each shard of a group. K and S are fixed for a run; the number of
/// groups is not.
struct RowRange {
  uint64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};

/// The rows that `group` of `groups` computes. The groups together compute each row once. Their
/// numbers of rows differ by at most one. rows < 2^32, groups < 2^32.
constexpr RowRange rows_of_group(uint64_t rows, uint64_t groups, uint64_t group) {
  const uint64_t first = rows * group / groups, end = rows * (group + 1) / groups;
  return {first, end - first};
}

/// Index in its step of the k-th micro-batch of the trainer of `shard`; k is in [0, rows.count).
/// rows: of the trainer's group. The index determines the samples (sample_order.hpp) and the
/// micro-batch's leaf in the step's tree of sums (tree_sum.hpp). Dataloader, engine and ledger must
/// have the same index, so all of them call this function.
constexpr uint64_t leaf_of(const RowRange& rows, uint64_t k, uint64_t shards, uint64_t shard) {
  return (rows.first + k) * shards + shard;
}

/// The largest number of rows of any group.
constexpr uint64_t max_rows(uint64_t rows, uint64_t groups) {
  return (rows + groups - 1) / groups;
}

}  // namespace simplescale
