// What a group keeps of the gathered parameters between uses, and which part of a step's batch it
// trains. Groups always replicate. Pure functions; no thread of their own.
#pragma once

#include <cstdint>

namespace simplescale {

enum class Sharding : unsigned char {
  full_shard,     // a unit is gathered for forward and again for backward
  shard_grad_op,  // gathered once a step and kept; gradients and optimizer state are sharded
  no_shard,       // a group is one trainer: nothing is gathered
};

/// Rows of a step's batch: [first, first + count). A step has K rows of S micro-batches, one for each
/// of a group's S shards. K and S are fixed for a run, the number of groups is not.
struct RowRange {
  uint64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};

/// The rows that `group` of `groups` trains: their numbers differ by at most one among groups, and
/// together the groups train each row once. rows < 2^32, groups < 2^32.
constexpr RowRange rows_of_group(uint64_t rows, uint64_t groups, uint64_t group) {
  const uint64_t first = rows * group / groups, end = rows * (group + 1) / groups;
  return {first, end - first};
}

/// Index of a micro-batch in its step, and leaf of the step's tree of sums (tree_sum.hpp): the k-th
/// that the trainer of `shard` computes, k in [0, rows.count), where `rows` are those of its group.
/// The only place that has this formula: dataloader, trainer and engine must agree on it bit by bit.
constexpr uint64_t leaf_of(const RowRange& rows, uint64_t k, uint64_t shards, uint64_t shard) {
  return (rows.first + k) * shards + shard;
}

/// The largest number of rows of any group.
constexpr uint64_t max_rows(uint64_t rows, uint64_t groups) {
  return (rows + groups - 1) / groups;
}

}  // namespace simplescale
