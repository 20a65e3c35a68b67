// Which buffers an engine takes: a pure function of model and layout, so that memory can be
// estimated before anything starts and a test can hold the engine to its bound.
#pragma once

#include <cstddef>
#include <vector>

#include "model/engine/engine.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// `slots` buffers of `elements` elements, for the units that name this pool.
struct BufferPool {
  size_t elements = 0;
  size_t slots = 0;
};

/// e bytes of the compute precision, P elements of the padded shard, S shards; U elements of a
/// whole padded block, E of the larger of embeddings and head (of both together when tied); D
/// digits.
///
///   gather    (2 U + E) e   full_shard
///             S P e         shard_grad_op, and one shard in bf16
///             0             one shard in fp32
///   gradient  (2 U + E) e
///             0             where backward can write the sum itself: fp32, one leaf a group, host
///   slices    D P 4
///   total     P 4           more than one group, or device memory
///   state     3 P 4         device memory
struct BufferPlan {
  std::vector<size_t> pool_of_unit_gather, pool_of_unit_gradient;  // empty: no buffers
  std::vector<BufferPool> gather, gradient;
  bool gradient_in_slice = false;  // backward writes into the only digit of the slice
  size_t digits = 1;               // fp32 buffers of the shard for partial sums
  bool separate_total = false;     // one more for the total
  bool device_state = false;       // three more for the master state
  size_t bytes(DType precision, size_t shard_total) const;
};

BufferPlan buffer_plan(const EngineOptions& options, size_t groups, size_t shards,
                       bool host_memory);

}  // namespace simplescale
