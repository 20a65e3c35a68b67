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

/// A step has K rows of S leaves (S: shards of a group); K and S are fixed for a run, the number of
/// groups is not. Leaf of (row, shard) is row * S + shard.
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

/// The largest count of any group.
constexpr uint64_t most_rows(uint64_t rows, uint64_t groups) {
  return (rows + groups - 1) / groups;
}

}  // namespace simplescale
