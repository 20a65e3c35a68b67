#pragma once

#include "runtime/feed/sample_order.hpp"

namespace simplescale {

/// A layout whose steps all have `turns` micro-batches for each trainer of a group.
inline BatchLayout equal_steps(uint64_t groups, uint64_t shards, uint64_t turns,
                               uint64_t micro_batch_size) {
  return {groups, shards, micro_batch_size, BatchSchedule(turns * shards * micro_batch_size)};
}

}  // namespace simplescale
