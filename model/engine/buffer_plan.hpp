// Which buffers an engine takes: a pure function of model and layout, so that memory can be
// estimated before anything starts and a test can hold the engine to its bound.
#pragma once

#include <cstddef>
#include <vector>

#include "model/engine/engine.hpp"
#include "runtime/base/model_shape.hpp"

namespace simplescale {

/// `slots` buffers of `elements` elements, for the units that name this pool.
struct BufferPool {
  size_t elements = 0;
  size_t slots = 0;
};

/// With e bytes of the compute precision, P elements of the padded shard, S shards, U and E
/// elements of a whole padded block and of the larger of embeddings and head (both, when tied), D
/// digits:
///   gather    full_shard (2 U + E) e; shard_grad_op S P e; one shard: P e in bf16, nothing in fp32
///   gradient  (2 U + E) e; nothing where backward can write the fp32 sum itself (one shard, A = 1,
///   fp32, host memory) slices    D P 4 bytes; totals P 4 bytes, more than one group or device
///   memory only; device: 3 P 4 for the state
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

/// Bytes of everything the engine and its state keep for one trainer, without the backend's
/// activations: the plan's buffers and both sides of the state.
size_t engine_bytes(const EngineOptions& options, size_t groups, size_t shards, bool host_memory);

}  // namespace simplescale
