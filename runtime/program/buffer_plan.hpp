// Which buffers an engine allocates: a pure function of model and layout, so that memory can be
// estimated before a run starts, and a test can check the engine against the estimate.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/program/engine_options.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// `slots` buffers of `elements` elements each, shared by the units assigned to this pool.
struct BufferPool {
  size_t elements = 0;
  size_t slots = 0;
};

/// Bytes of each kind of buffer:
struct BufferBytes {
  size_t gather = 0, gradient = 0, sums = 0;
  size_t slices = 0;  // and the total
  size_t muon = 0, state = 0;
  size_t exchange = 0;
  size_t total() const { return gather + gradient + sums + slices + muon + state + exchange; }
  bool operator==(const BufferBytes&) const = default;
};

/// These are:
///
///   gather    (2 U + E) e   full_shard; one shard whose sums leave the device unit by unit
///             S P e         shard_grad_op, and one shard in bf16
///             0             one shard in fp32, unless its state is in host memory and it computes on
///                           a device
///   gradient  (2 U + E) e
///             0             if backward can write the sum itself: fp32, one shard, at most one
///                           leaf per group, host memory
///   sums      (2 U + E) log2(W) 4     waves of W > 1 micro-batches, with several shards
///   slices    D (P + H) 4
///   total     (P + H) 4     more than one group, unless both collectives have native_sums()
///             Of a device whose state is in host memory, if all trainers' leaves of a step are one
///             turn: with a block's three and the largest unit's one part (3 U + E) / S instead of P.
///             With one shard the digits after the first are those of one unit.
///   state     P s           device memory, unless its state is in host memory
///   muon      (U + O) e     Muon; U / S more with several shards
///   exchange  W R (2 C e + 8) + 2 R' (3 C e + 16)   resident experts; of these, gather has a shard only
///
///   e  bytes of an element in compute precision
///   s  bytes of a parameter in the state (StateFormat): 12, 16 with an average; moments in bf16: 4
///      less
///   S  shards
///   P  elements of one padded shard
///   U  elements of a whole padded block; with experts, of the largest block and the largest block's
///      experts
///   E  elements of the larger of embeddings and head; of both together if they are tied
///   H  elements of one padded shard of the embeddings if they are tied, else 0: lm_head's part of
///      their gradient has a tree of its own, and the two totals are added once
///   O  the most elements of matrices that one rank owns (muon_plan.hpp)
///   R  rows of a micro-batch that are sent: its tokens times experts of a token
///   R' rows that one trainer gets of another one, at most: tokens times experts of a token or of a trainer,
///      whichever are fewer
///   D  digits: buffers for partial sums (sharding.hpp); 1 if both collectives have native_sums()
struct BufferPlan {
  // Per unit, and of gradients also for lm_head's part of tied embeddings; empty: no buffers.
  std::vector<size_t> pool_of_unit_gather, pool_of_unit_gradient;
  std::vector<BufferPool> gather, gradient;
  // The sums of a wave's gradients, whole units in fp32; as the gradients' pools.
  std::vector<BufferPool> sums;
  size_t sum_digits = 0;  // buffers of each of these sums
  // True: a sum over a group's trainers is only started, and waited for later. False: it is made.
  bool sums_in_background = false;
  bool gradient_in_slice = false;  // backward writes into the only digit of the slice
  size_t tied_gradient = 0;        // H
  size_t digits = 1;               // fp32 buffers of the shard for partial sums
  bool separate_total = false;     // one more fp32 buffer of the shard, for the total
  // Windows: a unit's sums leave the device when they are complete, and these hold those of a few
  // units, parts of a shard in fp32. Empty: there are buffers for all units at once.
  std::vector<size_t> pool_of_unit_window;
  std::vector<BufferPool> windows;
  size_t window_digits = 1;  // of each window; the others are the pools of `further`, used in turn
  std::vector<BufferPool> further;
  /// The pool of further digits of a pool of windows, if there are any.
  size_t further_of(size_t pool) const { return further.size() > 1 && pool == 2 ? 1 : 0; }
  size_t device_state = 0;  // bytes of a parameter in the master state; 0: in host memory
  // True: the device computes with a state in host memory. Each unit's total gradient is downloaded,
  // and its updated parameters are uploaded.
  bool through_host = false;
  // Resident experts: their units, of which a trainer reads its own shard only, and rows of tokens
  // (model/engine/token_exchange.hpp). Empty: experts are gathered.
  std::vector<size_t> resident_units;
  bool is_resident(size_t unit) const { return std::ranges::binary_search(resident_units, unit); }
  size_t rows_sent = 0;      // of one micro-batch
  size_t rows_received = 0;  // from one trainer, at most
  size_t row_elements = 0;   // C
  size_t frames = 1;         // micro-batches whose rows are under way at once
  // In compute precision; 0 without Muon.
  size_t muon_unit = 0, muon_part = 0;  // a whole block; one shard of it if there are several
  size_t muon_owned = 0;                // a rank's own matrices
  /// shard_total: P.
  BufferBytes bytes(DType precision, size_t shard_total) const;
  /// Pinned host memory of a trainer whose device computes with a state in host memory: its total
  /// gradient in fp32, and its updated parameters in the precision.
  size_t host_bytes(DType precision, size_t shard_total) const;
};

BufferPlan buffer_plan(const EngineOptions& options, size_t groups, size_t shards, bool host_memory,
                       bool native_sums);
/// The same with all that any number of groups up to `groups` needs: with fewer, each has more
/// leaves. any_weights: and with any weights of the groups; it may be more than they need.
BufferPlan most_buffers(const EngineOptions& options, size_t groups, size_t shards,
                        bool host_memory, bool native_sums, bool any_weights);

}  // namespace simplescale
