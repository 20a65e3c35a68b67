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

Restore::Restore(const JoinTrainer& order, const ModelShape& shape, int timeout_ms,
                 std::function<bool()> fenced, Parallel parallel)
    : order_(order),
      shape_(shape),
      units_(units_of(shape)),
      total_(shard_layout(units_, order.shards).total),
      timeout_ms_(timeout_ms),
      fenced_(std::move(fenced)),
      parallel_(std::move(parallel)),
      layout_(layout_of(order.shards, order.shard)),
      from_shards_(order.from_shards > 0 ? order.from_shards : order.shards) {}

Status Restore::transfer(DataPlane& plane, TrainState& state) {
  // The transfers may discard what a pending copy for a checkpoint or a peer reads: wait for it.
  SS_RETURN_IF_ERROR(state.wait_unpinned(timeout_ms_));
  for (const TransferPart& part : order_.transfers) {
    if (part.rank >= part.members.size() || part.shard >= part.shards || part.shards > kRanksMax)
      return bad_order("transfer " + std::to_string(part.id) + " of shard " +
                       std::to_string(part.shard) + " of " + std::to_string(part.shards) +
                       " has no rank " + std::to_string(part.rank));
    SS_RETURN_IF_ERROR(
        transfer_part(plane, state, part)
            .in("transfer " + std::to_string(part.id) + " of shard " + std::to_string(part.shard)));
  }
  return end_pieces(state);
}

Status Restore::transfer_part(DataPlane& plane, TrainState& state, const TransferPart& part) {
  std::unique_ptr<Collective> communicator;
  if (part.members.size() > 1) {
    SS_ASSIGN(communicator, join_transfer(plane, order_.generation, part, timeout_ms_));
  }
  if (part.rank == 0) return send(communicator.get(), state, part);
  return receive(*communicator, state, part);
}

/// The supervisor has made an order that this trainer cannot follow, however often it tries.
Status Restore::bad_order(const std::string& why) {
  fault_ = {Fault::bad_order, ""};
  return {Code::bad_data, why};
}

/// What this trainer gets of the shard of a transfer; nothing: the whole shard. bad_data: the
/// transfer is not for it, or repeats one.
Result<std::vector<Piece>> Restore::pieces_of(const TransferPart& part) {
  const auto bad = [&](const std::string& why) { return bad_order(why); };
  if (order_.group == no_group) return bad("the trainer takes part in no group");
  if (received_) return bad("the trainer has its shard already");
  if (part.shards != from_shards_) return bad("the transfer is of a shard of another cut");
  if (!reshapes()) {
    if (part.shard != order_.shard) return bad("the transfer is not of this trainer's shard");
    return std::vector<Piece>();
  }
  std::vector<Piece> pieces =
      common_pieces(units_, part.shards, part.shard, order_.shards, order_.shard);
  if (pieces.empty()) return bad("the shard has no element of this trainer's shard");
  if (!taken_.insert(part.shard).second) return bad("the shard was received before");
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  return pieces;
}

/// The side for this generation's shard. Keeps the copy of the cut that is moved, which this trainer
/// may have to send, too.
Result<TrainState::Side> Restore::room(TrainState& state) {
  if (room_) return *room_;
  for (const int side : {0, 1})
    if (state.step_of(side) == order_.step && shards_of(state.layout(side)) == from_shards_)
      SS_RETURN_IF_ERROR(state.rewind(order_.step, state.layout(side)));
  std::set<uint32_t> sent;  // shards of this trainer's own memory
  for (const TransferPart& own : order_.transfers)
    if (const uint32_t layout = layout_of(own.shards, own.shard);
        own.rank == 0 && own.segment.empty() && state.holds(own.step, layout))
      sent.insert(layout);
  if (sent.size() > 1)
    return Status(Code::internal,
                  "the trainer has to send both of its copies, and has no room for a third one");
  if (!sent.empty()) SS_RETURN_IF_ERROR(state.rewind(order_.step, *sent.begin()));
  SS_ASSIGN(room_, state.begin_write(timeout_ms_, layout_, total_));
  return *room_;
}

Status Restore::receive(Collective& communicator, TrainState& state, const TransferPart& part) {
  SS_ASSIGN(const std::vector<Piece> pieces, pieces_of(part));
  Receipt receipt;
  receipt.values = floats_of(state.format(), pieces, total_);
  receipt.room = [&] { return room(state); };
  receipt.pieces = pieces;
  bytes_ += receipt.values * sizeof(float);
  const Result<Hash128> hash = receive_state(communicator, receipt, part.step, part.source);
  if (hash.status().code() == Code::bad_data || hash.status().code() == Code::not_found)
    fault_ = {Fault::bad_copy, part.source};
  SS_RETURN_IF_ERROR(hash.status());
  if (!pieces.empty()) return {};
  received_ = true;
  hash_ = *hash;
  return {};
}

/// All elements of this generation's shard must have come. A shard that is all padding has none.
Status Restore::end_pieces(TrainState& state) {
  if (!reshapes()) return {};
  for (uint32_t shard = 0; shard < from_shards_; ++shard)
    if (!taken_.contains(shard) &&
        !common_pieces(units_, from_shards_, shard, order_.shards, order_.shard).empty())
      return bad_order("nobody has sent shard " + std::to_string(shard) + " of " +
                       std::to_string(from_shards_) + ", of which this trainer needs a part");
  SS_RETURN_IF_ERROR(room(state).status());
  clear_padding(*room_, pieces_);
  received_ = true;
  hash_ = state_hash(*room_, parallel_);
  return {};
}

/// If `status` is mismatch, the copy in this side of `from` is damaged: forgets it and sets the
/// fault. Returns `status`.
Status Restore::forget_if_damaged(TrainState& from, int side, Status status) {
  if (status.code() != Code::mismatch) return status;
  from.forget(side);
  fault_ = {Fault::bad_copy, order_.trainer};
  return status;
}

Status Restore::send(Collective* communicator, TrainState& state, const TransferPart& part) {
  std::optional<TrainState> other;  // memory of this node
  fault_ = {Fault::bad_copy, order_.trainer};
  if (!part.segment.empty()) {
    SS_ASSIGN(other, TrainState::open(part.segment));
  }
  TrainState& from = other ? *other : state;
  const Result<int> side = from.pin(part.step, layout_of(part.shards, part.shard));
  if (!side.ok()) {
    if (communicator) SS_RETURN_IF_ERROR(send_nothing(*communicator, part.step));
    return side.status();
  }
  fault_ = {};
  const Pin pin(from, *side);
  return forget_if_damaged(from, *side, send_copy(communicator, state, from, *side, part));
}

Status Restore::send_copy(Collective* communicator, TrainState& state, TrainState& from, int side,
                          const TransferPart& part) {
  const TrainState::Side copy = from.side(side);
  const Hash128 hash = from.hash(side);
  const Result<std::vector<Piece>> pieces = sent_pieces(units_, part);
  if (!pieces.ok()) return bad_order(pieces.status().message());
  if (communicator) {
    bytes_ += floats_of(copy.format(), *pieces, copy.params.size()) * sizeof(float);
    SS_RETURN_IF_ERROR(
        send_state(*communicator, copy, part.step, hash, {*pieces, &blocks_, parallel_}));
  }
  return part.takes ? take(state, part, copy, hash) : Status();
}

/// Takes this generation's shard, or a part of it, out of a copy in memory of this node.
Status Restore::take(TrainState& state, const TransferPart& part, const TrainState::Side& copy,
                     const Hash128& hash) {
  SS_ASSIGN(const std::vector<Piece> pieces, pieces_of(part));
  SS_ASSIGN(const TrainState::Side side, room(state));
  if (!pieces.empty()) {
    SS_RETURN_IF_ERROR(check_copy(copy, part.step, hash, blocks_, parallel_));
    return take_pieces(copy, side, pieces, parallel_, blocks_);
  }
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
  SS_ASSIGN(const TrainState::Side side, state.begin_write(timeout_ms_, layout_, total_));
  SS_RETURN_IF_ERROR(read_shard(checkpoint, order_.shards, order_.shard, side, fenced_, parallel_));
  hash_ = state_hash(side, parallel_);
  received_ = true;
  return {};
}

/// Checks that this trainer's state holds its shard at the generation's step, undamaged.
Status Restore::check_own(TrainState& state) {
  const Result<int> side = state.pin(order_.step, layout_);
  if (!side.ok()) {
    fault_ = {Fault::bad_copy, order_.trainer};
    return Status(Code::not_found, "memory does not hold shard " + std::to_string(order_.shard) +
                                       " of " + std::to_string(order_.shards) + " at step " +
                                       std::to_string(order_.step) +
                                       ", and no trainer has sent it");
  }
  const Pin pin(state, *side);
  return forget_if_damaged(state, *side, check_side(state, *side, parallel_));
}

Status Restore::commit(TrainState& state, const Axes& axes) {
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
  // No barrier follows the commit: a side is overwritten only after the first step's vote, which every
  // trainer reaches after its commit.
  SS_RETURN_IF_ERROR(barrier(axes));
  SS_RETURN_IF_ERROR(commit_restored_state(state));
  if (reshapes()) SS_RETURN_IF_ERROR(barrier(axes));
  // The engine writes steps to a side of the size of its shard.
  if (state.side(0).params.size() != total_ || state.side(1).params.size() != total_)
    SS_RETURN_IF_ERROR(state.begin_write(timeout_ms_, layout_, total_).status());
  return {};
}

/// Commits the generation's shard.
Status Restore::commit_restored_state(TrainState& state) {
  if (order_.source == JoinSource::initialize)
    return state.invalidate_as(timeout_ms_, layout_, total_);
  const bool begun = order_.source != JoinSource::checkpoint;
  if (received_) state.commit(order_.step, hash_, begun);
  return state.begin_generation(order_.step, layout_, begun);
}

}  // namespace simplescale
