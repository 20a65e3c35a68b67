#include "actors/trainer/restore.hpp"

#include <algorithm>
#include <utility>

#include "actors/checkpoint/state_store.hpp"
#include "actors/peer/transfer.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/state_transfer.hpp"

namespace simplescale {
namespace {

/// Waits until all ranks of the world have called it.
Status barrier(const Axes& axes) {
  for (const Axis& axis : axes) SS_RETURN_IF_ERROR(axis.members->barrier()->wait());
  return {};
}

/// Unpins a side on destruction.
class Pin {
 public:
  Pin(TrainState& state, int side) : state_(state), side_(side) {}
  ~Pin() { state_.unpin(side_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  TrainState& state_;
  int side_;
};

}  // namespace

Restore::Restore(const JoinTrainer& order, const ModelShape& shape, size_t shards, int timeout_ms,
                 std::function<bool()> fenced, Parallel parallel)
    : order_(order),
      shape_(shape),
      shards_(shards),
      total_(shard_layout(units_of(shape), shards).total),
      timeout_ms_(timeout_ms),
      fenced_(std::move(fenced)),
      parallel_(std::move(parallel)),
      layout_(order.group == no_group ? 0 : layout_hash(shape, shards, order.shard)) {}

Status Restore::transfer(DataPlane& plane, TrainState& state) {
  // The transfers may discard what a pending copy for a checkpoint or a peer reads: wait for it.
  SS_RETURN_IF_ERROR(state.wait_unpinned(timeout_ms_));
  for (const TransferPart& part : order_.transfers) {
    if (part.rank >= part.members.size())
      return Status(Code::bad_data, "transfer " + std::to_string(part.id) + " has no rank " +
                                        std::to_string(part.rank));
    SS_RETURN_IF_ERROR(
        transfer_part(plane, state, part)
            .in("transfer " + std::to_string(part.id) + " of shard " + std::to_string(part.shard)));
  }
  return {};
}

Status Restore::transfer_part(DataPlane& plane, TrainState& state, const TransferPart& part) {
  std::unique_ptr<Collective> communicator;
  if (part.members.size() > 1) {
    SS_ASSIGN(communicator, join_transfer(plane, order_.generation, part, timeout_ms_));
  }
  bytes_ += state.side(0).values() * sizeof(float);
  if (part.rank == 0) return send(communicator.get(), state, part);
  if (order_.group == no_group || part.shard != order_.shard)
    return Status(Code::bad_data, "the transfer is not of this trainer's shard");
  const Result<Hash128> hash =
      receive_state(*communicator, state, part.step, part.source, timeout_ms_);
  if (hash.status().code() == Code::bad_data || hash.status().code() == Code::not_found)
    fault_ = {Fault::bad_copy, part.source};
  received_ = hash.ok();
  if (hash.ok()) hash_ = *hash;
  return hash.status();
}

/// If `status` is mismatch, the copy of `step` in `state` is damaged: forgets it and sets the
/// fault. Returns `status`.
Status Restore::forget_if_damaged(TrainState& state, uint64_t step, Status status) {
  if (status.code() != Code::mismatch) return status;
  state.forget(step);
  fault_ = {Fault::bad_copy, order_.trainer};
  return status;
}

Status Restore::send(Collective* communicator, TrainState& state, const TransferPart& part) {
  if (part.segment.empty())
    return communicator
               ? forget_if_damaged(state, part.step, send_state(*communicator, state, part.step))
               : Status();
  fault_ = {Fault::bad_copy, order_.trainer};
  SS_ASSIGN(TrainState peer, TrainState::open(part.segment, total_));
  SS_ASSIGN(const int side, peer.pin(part.step));
  fault_ = {};
  const Pin pin(peer, side);
  const Hash128 hash = peer.hash(side);
  Status status =
      communicator ? send_state(*communicator, peer.side(side), part.step, hash) : Status();
  const bool own = order_.group != no_group && order_.shard == part.shard;
  if (status.ok() && own) status = copy_from_peer_store(state, part, peer.side(side), hash);
  return forget_if_damaged(peer, part.step, std::move(status));
}

/// Copies this trainer's shard from the node's peer store into its own state.
Status Restore::copy_from_peer_store(TrainState& state, const TransferPart& part,
                                     const TrainState::Side& copy, const Hash128& hash) {
  if (state.holds(part.step)) SS_RETURN_IF_ERROR(state.rewind(part.step));
  SS_ASSIGN(const TrainState::Side side, state.begin_write(timeout_ms_));
  side.copy_from(copy, parallel_);
  SS_RETURN_IF_ERROR(check_copy(side, part.step, hash, parallel_));
  hash_ = hash;
  received_ = true;
  return {};
}

Status Restore::read_checkpoint(TrainState& state) {
  auto opened = open_step(order_.checkpoint, order_.step);
  // Pruning removes single checkpoints, never all of them.
  if (opened.status().code() == Code::not_found &&
      find_newest_valid(order_.checkpoint, Verify::sizes).status().code() == Code::not_found)
    return Status(Code::io, order_.checkpoint +
                                ": there is no checkpoint at all: is its file system mounted?");
  SS_ASSIGN(Checkpoint checkpoint, std::move(opened));
  SS_ASSIGN(const TrainState::Side side, state.begin_write(timeout_ms_));
  SS_RETURN_IF_ERROR(read_shard(checkpoint, shards_, order_.shard, side, fenced_, parallel_));
  hash_ = state_hash(side, parallel_);
  received_ = true;
  return {};
}

/// Checks that this trainer's state holds its shard at the generation's step, undamaged.
Status Restore::check_own(TrainState& state) {
  if (state.layout_hash() != layout_ || !state.holds(order_.step)) {
    fault_ = {Fault::bad_copy, order_.trainer};
    return Status(Code::not_found, "memory does not hold shard " + std::to_string(order_.shard) +
                                       " at step " + std::to_string(order_.step) +
                                       ", and no trainer has sent it");
  }
  SS_ASSIGN(const int side, state.pin(order_.step));
  const Pin pin(state, side);
  return forget_if_damaged(state, order_.step, check_side(state, side, parallel_));
}

Status Restore::commit(TrainState& state, const Axes& axes) {
  if (order_.commit_round >= order_.commit_rounds)
    return Status(Code::bad_data, "cannot commit in round " + std::to_string(order_.commit_round) +
                                      " of " + std::to_string(order_.commit_rounds));
  if (order_.source == JoinSource::checkpoint) {
    const Status read = read_checkpoint(state);
    if (read.code() == Code::io)
      fault_ = {Fault::bad_disk, ""};
    else if (read.code() == Code::bad_data || read.code() == Code::not_found)
      fault_ = {Fault::bad_checkpoint, ""};
    SS_RETURN_IF_ERROR(read);
  }
  const bool memory = order_.source == JoinSource::memory || order_.source == JoinSource::save;
  if (memory && !received_) SS_RETURN_IF_ERROR(check_own(state));
  // No barrier follows the last round: a side is overwritten only after the first step's vote,
  // which every trainer reaches after its commit.
  for (uint32_t round = 0; round < order_.commit_rounds; ++round) {
    SS_RETURN_IF_ERROR(barrier(axes));
    if (round == order_.commit_round) SS_RETURN_IF_ERROR(commit_restored_state(state));
  }
  return {};
}

/// Commits the generation's shard and discards everything else that the state holds.
Status Restore::commit_restored_state(TrainState& state) {
  if (order_.source == JoinSource::initialize)
    state.invalidate_as(layout_);
  else if (received_)
    state.commit_as(layout_, order_.step, hash_);
  else
    return state.begin_generation(order_.step);
  return {};
}

}  // namespace simplescale
