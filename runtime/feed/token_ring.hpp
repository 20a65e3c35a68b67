// Token rings: bounded queues of micro-batches from a node's dataloader to its trainers, in shared
// memory that the node owns. A segment holds one ring per trainer. A ring has one producer (the
// dataloader's thread, ring_filler.hpp) and one consumer (the compute thread of a trainer, another
// process), which reads in place.
//
//   RING-1  Positions only grow, also over reset(): a slot acquired before a reset cannot be
//           released after it.
//   RING-2  No wait depends on the other side being alive: every wait has a deadline, and a
//           consumer that is killed at any instruction leaves a ring that the producer can continue
//           or reset.
//   RING-3  A consumer only gets the generation, step and accumulation that it asks for.
//
// Segment:
//   Header          4096 bytes
//   RingHeader      4096 bytes, for each ring
//   slots           for each ring `slots` slots of slot_bytes() bytes, each with
//     SlotHeader    64 bytes
//     tokens        micro_batch_size x (block_size + 1) int32
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/futex.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

struct RingShape {
  uint64_t rings = 1;             // trainers of the node
  uint64_t slots = 8;             // micro-batches that a ring can hold
  uint64_t micro_batch_size = 1;  // B, samples
  uint64_t block_size = 1;        // T; a sample is T + 1 tokens

  uint64_t tokens() const { return micro_batch_size * (block_size + 1); }  // per slot
  uint64_t slot_bytes() const { return (64 + 4 * tokens() + 63) / 64 * 64; }
  uint64_t segment_bytes() const { return 4096 * (1 + rings) + rings * slots * slot_bytes(); }
  bool operator==(const RingShape&) const = default;
};

/// Identifies a micro-batch of a trainer. accumulation: its number in the step, from 0.
struct BatchKey {
  uint64_t generation = 0, step = 0, accumulation = 0;
  bool operator==(const BatchKey&) const = default;
};

struct MicroBatch {
  const int32_t* tokens = nullptr;  // (B, T + 1), in shared memory, valid until release()
  uint64_t first_sample = 0;        // place of row 0 (skipped_samples.hpp)
};

class TokenRings {
 public:
  /// Creates empty rings of generation 0. Called by the node. io: no room; bad_config: impossible
  /// shape.
  static Result<TokenRings> create(const std::string& name, const RingShape& shape);
  /// Maps existing rings. Called by the trainer. bad_data: the segment is not one of token rings;
  /// io.
  static Result<TokenRings> open(const std::string& name);

  const RingShape& shape() const { return shape_; }
  const std::string& name() const { return memory_.name(); }

  // -- Consumer ----------------------------------------------------------------------------------

  /// Waits for the micro-batch `key` of a ring and returns it. Acquiring it again before release()
  /// returns it again. deadline: it did not come within timeout_ms. aborted: the ring belongs to a
  /// later generation, or holds another micro-batch. After close(): its status.
  Result<MicroBatch> acquire(uint64_t ring, const BatchKey& key, int timeout_ms);
  /// Returns the slot of the last acquire() to the producer. aborted: the ring was reset in
  /// between, so the tokens may have been overwritten while they were read.
  Status release(uint64_t ring);

  // -- Producer ----------------------------------------------------------------------------------

  /// Where to write the next micro-batch of a ring, (B, T + 1) tokens; nullptr while the ring is
  /// full.
  int32_t* begin_fill(uint64_t ring);
  /// Publishes the micro-batch that was written to the place of begin_fill().
  void commit_fill(uint64_t ring, uint64_t step, uint64_t accumulation, uint64_t first_sample);
  /// Empties the ring, reopens it, and moves it to a generation.
  void reset(uint64_t ring, uint64_t generation);
  /// A counter that changes when the producer may have work: a consumer has released a slot or
  /// begins to wait, or ring_doorbell() was called. Read it, look for work, then call
  /// wait_for_work() with the value read.
  uint32_t doorbell() const;
  /// Sleeps until the doorbell differs from `seen`. False: the deadline has passed.
  bool wait_for_work(uint32_t seen, TimePoint deadline);
  void ring_doorbell();

  // -- Both sides --------------------------------------------------------------------------------

  /// Wakes both sides; every acquire() returns this status until reset(). A second close() has no
  /// effect.
  void close(uint64_t ring, const Status& reason);
  /// The status given to close(); ok while the ring is open.
  Status closed(uint64_t ring) const;
  uint64_t filled(uint64_t ring) const;  // number of filled slots

 private:
  struct Header;
  struct RingHeader;
  struct SlotHeader;
  Header* header() const;
  RingHeader* ring_header(uint64_t ring) const;
  SlotHeader* slot(uint64_t ring, uint64_t position) const;

  SharedMemory memory_;
  RingShape shape_;  // checked when mapped; the copy in the segment is not read again
  // For each ring: position + 1 of the slot that this process has acquired; 0: none.
  std::vector<uint64_t> held_;
};

}  // namespace simplescale
