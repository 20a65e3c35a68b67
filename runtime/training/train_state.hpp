// One shard's training state in node-owned shared memory, twice. The optimizer reads the committed
// side, writes the other, and commit() flips: a snapshot of every step without a copy, which
// survives the death of the trainer.
//
//   STATE-1 The committed side is never written. A writer that dies leaves it whole.
//   STATE-2 With a side goes the hash of what was committed (state_hash.hpp): whoever uses a copy checks
//      it. And the generation in which it was made: a copy of a step that was undone and made again
//      is not taken for the new one.
//
// Segment: StateHeader (4096 bytes), then side 0, then side 1; a side is params, exp_avg,
// exp_avg_sq, each total floats. Threads: one writer (the trainer's compute thread) or the node
// while no trainer is attached; readers pin a side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/held_step.hpp"

namespace simplescale {

struct StateHeader {
  static constexpr uint64_t kMagic = 0x3153'5453'4c50'4d53;
  uint64_t magic;
  std::atomic<uint64_t>
      layout_hash;  // of model shape, shards, shard index: a segment of another layout is refused
  uint64_t total;   // elements of params
  std::atomic<uint32_t> committed;  // 0: no side is valid; else 1 + the committed side
  std::atomic<uint64_t> step[2];    // the step whose result a side holds; step 0: initial values
  std::atomic<uint64_t> generation[2];  // in which a side was made, set before its step
  std::atomic<uint32_t> pins[2];        // readers (checkpoint writer, healer) of a side; futex
  Hash128 hash[2];  // state_hash() of a side, set before its step; zero: not known
};

class TrainState {
 public:
  /// Bytes of a segment for `total` parameters.
  static size_t bytes_for(size_t total);
  /// The node's call: a new empty segment.
  static Result<TrainState> create(const std::string& name, uint64_t layout_hash, size_t total);
  /// Maps what create() made; refuses another layout.
  static Result<TrainState> open(const std::string& name, uint64_t layout_hash, size_t total);
  /// Maps a segment of any layout with this total: another shard of the same model, to be
  /// overwritten, or sent to whom it belongs. layout_hash() tells whose it is.
  static Result<TrainState> open(const std::string& name, size_t total);
  uint64_t layout_hash() const { return header()->layout_hash; }

  struct Side {
    std::span<float> params, exp_avg, exp_avg_sq;
  };
  /// True if one side holds a committed step.
  bool has_step() const;
  /// The committed step; only if has_step(), and by whom nobody can invalidate it meanwhile.
  uint64_t step() const;
  /// The same for everybody else.
  std::optional<uint64_t> step_if_any() const;
  /// True if one side holds exactly this step (the committed one, or the one before it, until it is
  /// overwritten).
  bool holds(uint64_t step) const;
  /// Makes the side that holds `step` the committed one (undoes at most one step). Only while
  /// nobody writes.
  Status rewind(uint64_t step);
  /// What commit(), commit_as() and begin_generation() are told the generation of. This object's, not the
  /// segment's.
  void set_generation(uint64_t generation) { generation_ = generation; }
  /// As rewind(), where the generation begins with `step`: the copy is of that generation from now
  /// on, and one of a newer step is forgotten, since that is undone.
  Status begin_generation(uint64_t step);
  Side committed();
  /// What commit() was told of the committed side; for the writer.
  Hash128 committed_hash() const;
  /// Until nobody pins either side: who is to copy a pinned one finds it by its step, so before
  /// that is forgotten. Code::deadline.
  Status wait_unpinned(int timeout_ms);
  /// The side to write the next step to; waits until no reader pins it, and forgets its old step
  /// then. Code::deadline when readers keep it longer than that.
  Result<Side> begin_write(int timeout_ms);
  /// Flips: what begin_write() gave is now the state of `step`. hash: its state_hash(); zero: not
  /// known, so that nobody can check it.
  void commit(uint64_t step, const Hash128& hash = {});
  /// As commit(); from now on the segment is of the layout `layout_hash`, so the other side, which
  /// is of the old one, is forgotten. Whoever dies in between leaves an empty segment.
  void commit_as(uint64_t layout_hash, uint64_t step, const Hash128& hash = {});
  /// The side that holds `step`, if any, is damaged: nobody finds it any more. Only the writer, or
  /// while there is none.
  void forget(uint64_t step);
  /// Forgets both sides (before a restore).
  void invalidate();
  /// Forgets both sides; from now on the segment is of the layout `layout_hash`.
  void invalidate_as(uint64_t layout_hash);

  /// A reader's hold on the side that holds `step`, else not_found. unpin() lets go. The writer
  /// waits for it.
  Result<int> pin(uint64_t step);
  Side side(int index);
  /// What commit() was told of it; for a side that is pinned, or that nobody writes.
  Hash128 hash(int side) const;
  /// UINT64_MAX: it holds none.
  uint64_t step_of(int side) const;
  /// The same with its generation.
  std::optional<HeldStep> held(int side) const;
  void unpin(int side);
  /// Lets go of all pins: the reader died.
  void clear_pins();
  const std::string& name() const { return memory_.name(); }

 private:
  Status wait_unpinned(uint32_t side, int timeout_ms);
  StateHeader* header() const { return static_cast<StateHeader*>(memory_.data()); }
  uint64_t committed_step() const;
  void flip_to(uint32_t side, uint64_t step, const Hash128& hash);
  SharedMemory memory_;
  uint64_t generation_ = 0;
};

}  // namespace simplescale
