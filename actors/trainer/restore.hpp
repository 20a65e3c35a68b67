// Brings a trainer's memory to the state that its generation begins with: by transfers between
// trainers, from its own memory, or from a checkpoint. Blocking; the compute thread makes all
// calls.
//
//   RESTORE-1  No trainer discards the state it held before all transfers of the generation are
//              complete. A trainer that gave its shard to another trainer keeps it until that
//              trainer has committed it: trainers commit in rounds (commit_rounds() in
//              actors/node/join.hpp), and all ranks meet before each round.
//   STATE-2    Every copy is compared with its hash before it is used; a damaged copy is discarded.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/parallel.hpp"
#include "runtime/training/axis.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// Why a restore failed: the fields of TrainerIdle.
struct RestoreFault {
  Fault fault = Fault::none;
  std::string suspect;
};

class Restore {
 public:
  /// shards: per group. timeout_ms: of each wait for other processes. fenced: polled by several
  /// threads while a checkpoint is read, which takes long; true ends the read. parallel: for passes
  /// over a whole state. order and shape must outlive this.
  Restore(const JoinTrainer& order, const ModelShape& shape, size_t shards, int timeout_ms,
          std::function<bool()> fenced, Parallel parallel);

  /// Takes this trainer's part in the generation's transfers, in the order of their ids. On return
  /// the receivers have everything that this trainer sent. What it received is not yet committed.
  Status transfer(DataPlane& plane, TrainState& state);
  /// Makes the generation's shard at its step the committed state; for JoinSource::initialize it
  /// empties the segment instead. All members of the generation call it together.
  Status commit(TrainState& state, const Axes& axes);

  /// Bytes sent and received.
  uint64_t bytes() const { return bytes_; }
  const RestoreFault& fault() const { return fault_; }

 private:
  Status transfer_part(DataPlane& plane, TrainState& state, const TransferPart& part);
  Status send(Collective* communicator, TrainState& state, const TransferPart& part);
  Status copy_from_peer_store(TrainState& state, const TransferPart& part,
                              const TrainState::Side& copy, const Hash128& hash);
  Status read_checkpoint(TrainState& state);
  Status check_own(TrainState& state);
  Status commit_restored_state(TrainState& state);
  Status forget_if_damaged(TrainState& state, uint64_t step, Status status);

  const JoinTrainer& order_;
  const ModelShape& shape_;
  const size_t shards_, total_;
  const int timeout_ms_;
  const std::function<bool()> fenced_;
  const Parallel parallel_;
  const uint64_t layout_;  // layout_hash() of this trainer's shard in this generation
  bool received_ = false;  // that shard is in the state's other side, not yet committed
  Hash128 hash_;           // of the received shard
  uint64_t bytes_ = 0;
  RestoreFault fault_;
};

}  // namespace simplescale
