// Sums over blocks of a shard that have the same bits on every layout. Pure, any thread; for host
// and device.
#pragma once

#include <cstdint>

namespace simplescale {

/// A run of 2^level consecutive blocks of a shard, of kShardAlign elements each. It is a node of
/// the summation tree (tree_sum.hpp) over the blocks of a unit.
struct BlockTree {
  int64_t first = 0;  // the first block, in the shard
  int64_t level = 0;
  constexpr int64_t blocks() const { return int64_t{1} << level; }
};

/// The sum of `count` values; count is a power of two. Adds neighbours, then neighbouring sums, in
/// place.
inline double sum_in_tree_order(double* values, int64_t count) {
  for (; count > 1; count /= 2)
    for (int64_t i = 0; i < count / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  return values[0];
}

}  // namespace simplescale
