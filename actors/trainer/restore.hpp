// Brings a trainer's memory to the state that its generation begins with: by transfers between
// trainers, from its own memory, or from a checkpoint. Blocking; the compute thread makes all
// calls.
//
// A transfer brings a shard. If the generation has another cut than the copies with which it begins,
// each transfer brings what a shard of the old cut has of one of the new (common_pieces()), and a
// trainer gets or takes all pieces of its own. If its shard is all padding, no transfer goes to it, and
// it makes the shard by itself.
//
//   RESTORE-1  No trainer discards the state it held before all transfers of the generation are
//              complete: all ranks meet before they commit. The state that a trainer held stays in the
//              other side until the first step overwrites it, which all ranks begin after their commit.
//              If the cut has changed, it stays until all ranks have met once more.
//   STATE-2    Every copy is compared with its hash before it is used; a damaged copy is discarded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
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
  /// timeout_ms: of each wait for other processes. fenced: polled by several
  /// threads while a checkpoint is read, which takes long; true ends the read. parallel: for passes
  /// over a whole state. order and shape must outlive this.
  Restore(const JoinTrainer& order, const ModelShape& shape, int timeout_ms,
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
  /// This trainer makes its shard of shards of another cut.
  bool reshapes() const { return order_.group != no_group && from_shards_ != order_.shards; }
  Status transfer_part(DataPlane& plane, TrainState& state, const TransferPart& part);
  Status send(Collective* communicator, TrainState& state, const TransferPart& part);
  Status send_copy(Collective* communicator, TrainState& state, TrainState& from, int side,
                   const TransferPart& part);
  Status receive(Collective& communicator, TrainState& state, const TransferPart& part);
  Status take(TrainState& state, const TransferPart& part, const TrainState::Side& copy,
              const Hash128& hash);
  Result<std::vector<Piece>> pieces_of(const TransferPart& part);
  Result<TrainState::Side> room(TrainState& state);
  Status end_pieces(TrainState& state);
  Status read_checkpoint(TrainState& state);
  Status check_own(TrainState& state);
  Status commit_restored_state(TrainState& state);
  Status bad_order(const std::string& why);
  Status forget_if_damaged(TrainState& from, int side, Status status);

  const JoinTrainer& order_;
  const ModelShape& shape_;
  const std::vector<Unit> units_;
  const size_t total_;  // elements of a shard in this generation
  const int timeout_ms_;
  const std::function<bool()> fenced_;
  const Parallel parallel_;
  const uint32_t layout_;       // layout_of() this trainer's shard in this generation
  const uint32_t from_shards_;  // of the cut of the copies with which it begins
  bool received_ = false;       // that shard is in the state's other side, not yet committed
  Hash128 hash_;                // of the received shard
  std::optional<TrainState::Side> room_;  // that other side, once something is written to it
  std::vector<Piece> pieces_;             // that were taken
  std::set<uint32_t> taken_;              // those shards
  std::vector<Hash128> blocks_;           // of the copy of which pieces were sent last
  uint64_t bytes_ = 0;
  RestoreFault fault_;
};

}  // namespace simplescale
