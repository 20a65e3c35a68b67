// How a trainer's memory comes to hold the state that its generation begins with: transfers between
// trainers, its own memory, a checkpoint. Blocking; the compute thread's.
//
//   RESTORE-1  Nobody discards what it held before all transfers of the generation are done, and nobody
//       who has given its shard to another before that one has committed it: all settle in rounds
//       (commit_rounds in node/join.hpp), and meet before each.
//   STATE-2  Every copy is held against its hash before it is used; one that is damaged is forgotten.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/training/collective.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// Why a restore failed, as TrainerIdle tells it.
struct RestoreFault {
  std::string fault, suspect;
};

class Restore {
 public:
  /// shards: of a group. timeout_ms: of each wait for others. fenced: asked while a checkpoint is
  /// read, which takes long; true ends that.
  Restore(const JoinTrainer& order, const ModelShape& shape, size_t shards, int timeout_ms,
          std::function<bool()> fenced);

  /// This trainer's part in the generation's transfers, in the order of their numbers; all that
  /// another trainer gets has arrived when it returns, what it gets itself is not committed.
  Status transfer(DataPlane& plane, TrainState& state);
  /// Makes the generation's shard at its step the committed state, but for "initialize", where the
  /// segment is made empty. All members of the generation call it together.
  Status commit(TrainState& state, Collective& shard, Collective& replicate);

  /// Bytes sent and received.
  uint64_t bytes() const { return bytes_; }
  const RestoreFault& fault() const { return fault_; }

 private:
  Status part(DataPlane& plane, TrainState& state, const TransferPart& part);
  Status send(Collective* others, TrainState& state, const TransferPart& part);
  Status take(TrainState& state, const TransferPart& part, const TrainState::Side& copy,
              const Hash128& hash);
  Status read_checkpoint(TrainState& state);
  Status check_own(TrainState& state);
  Status settle(TrainState& state);
  Status damaged(TrainState& state, uint64_t step, Status status);

  const JoinTrainer& order_;
  const ModelShape& shape_;
  const size_t shards_, total_;
  const int timeout_ms_;
  const std::function<bool()> fenced_;
  const uint64_t layout_;  // of the shard that is wanted
  bool received_ = false;  // it lies, uncommitted, in the other side
  Hash128 hash_;           // of what was received
  uint64_t bytes_ = 0;
  RestoreFault fault_;
};

}  // namespace simplescale
