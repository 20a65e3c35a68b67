// Token rings: micro-batches on their way from a node's dataloader to its trainers, in shared
// memory that the node owns. One segment holds one ring a trainer. A ring has one producer (the
// node's filler thread) and one consumer (the trainer's compute thread, another process); the
// consumer reads in place.
//
//   RING-1 Positions only grow, also over reset(): a slot handed out before a reset cannot be released
//   after it. RING-2 No wait depends on the other side living: every wait has a deadline, and a
//   consumer killed at any instruction
//      leaves a ring that the producer can go on with or reset.
//   RING-3 A consumer only gets the generation, step and accumulation it asks for.
//
// Segment: Header (4096 bytes), `rings` RingHeaders (4096 bytes each), then rings x slots slots of
// slot_bytes(): SlotHeader (64 bytes) and micro_batch_size x (block_size + 1) int32.
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
  uint64_t slots = 8;             // micro-batches held ready for each
  uint64_t micro_batch_size = 1;  // B, samples
  uint64_t block_size = 1;        // T; a sample is T + 1 tokens

  uint64_t tokens() const { return micro_batch_size * (block_size + 1); }  // of a slot
  uint64_t slot_bytes() const { return (64 + 4 * tokens() + 63) / 64 * 64; }
  uint64_t segment_bytes() const { return 4096 * (1 + rings) + rings * slots * slot_bytes(); }
  bool operator==(const RingShape&) const = default;
};

/// Which micro-batch: what a trainer asks for, and what a slot says it is.
struct BatchKey {
  uint64_t generation = 0, step = 0, accumulation = 0;
  bool operator==(const BatchKey&) const = default;
};

struct MicroBatch {
  const int32_t* tokens = nullptr;  // (B, T + 1), in shared memory, valid until release()
  uint64_t first_sample = 0;        // global index of row 0 (sample_order.hpp)
};

class TokenRings {
 public:
  /// The node's call: empty rings of generation 0. io if there is no room; bad_config for an
  /// impossible shape.
  static Result<TokenRings> create(const std::string& name, const RingShape& shape);
  /// The trainer's call. bad_data if the segment is none of ours.
  static Result<TokenRings> open(const std::string& name);

  const RingShape& shape() const { return shape_; }
  const std::string& name() const { return memory_.name(); }

  // ---- consumer
  // ---------------------------------------------------------------------------------------------------
  /// The micro-batch `key` of ring `ring`; waits until it is there. Asking again before release()
  /// gives it again. deadline: it did not come. aborted: the ring belongs to a later generation, or
  /// holds another micro-batch. Whatever code close() was given, with its reason.
  Result<MicroBatch> acquire(uint64_t ring, const BatchKey& key, int timeout_ms);
  /// Gives the slot of the last acquire() back. aborted: the ring was reset in between, so what was
  /// read may be torn.
  Status release(uint64_t ring);

  // ---- producer
  // ---------------------------------------------------------------------------------------------------
  /// Where the next micro-batch of a ring is to be written, (B, T + 1) tokens; nullptr while the
  /// ring is full.
  int32_t* begin_fill(uint64_t ring);
  /// Publishes what begin_fill() gave.
  void commit_fill(uint64_t ring, uint64_t step, uint64_t accumulation, uint64_t first_sample);
  /// Drops what is in the ring, reopens it and lets it begin anew for a generation.
  void reset(uint64_t ring, uint64_t generation);
  /// A word that changes whenever a consumer gives a slot back or waits in vain, and when the
  /// filler is called. Read it before looking for work, then wait_for_work(seen).
  uint32_t doorbell() const;
  /// Sleeps until the doorbell changes. False: the deadline has passed.
  bool wait_for_work(uint32_t seen, TimePoint deadline);
  void ring_doorbell();

  // ---- either side
  // ------------------------------------------------------------------------------------------------
  /// Wakes both sides; every acquire() ends with this status until reset(). The first reason stays.
  void close(uint64_t ring, const Status& reason);
  /// The reason of close(); ok while the ring is open.
  Status closed(uint64_t ring) const;
  uint64_t filled(uint64_t ring) const;  // slots ready now

 private:
  struct Header;
  struct RingHeader;
  struct SlotHeader;
  Header* header() const;
  RingHeader* ring_header(uint64_t ring) const;
  SlotHeader* slot(uint64_t ring, uint64_t position) const;

  SharedMemory memory_;
  RingShape shape_;  // as checked when mapped; the segment's own copy is not read again
  // position + 1 of the slot each ring's consumer holds; 0: none. Local to the process.
  std::vector<uint64_t> held_;
};

}  // namespace simplescale
