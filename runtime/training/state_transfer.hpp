// Transfers a shard's training state, or pieces of it, from one trainer to other trainers, over a
// communicator of its own. Rank 0 sends, all other ranks receive. The state is sent in chunks, so no
// rank needs a second copy; both ends hash all data. Pieces have no hash from their commit: the sender
// compares the whole copy with its hash before, and while it sends the blocks in which the pieces lie
// (kStateHashBlock). The compute thread of each rank calls these functions.
//
// A receiver writes only to its other side and commits nothing, so its own copy of the step
// survives. When all transfers of the generation are done, the receiver calls
//   TrainState::commit(), then Engine::attach().
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// What is sent of a copy; as a default all of it.
struct Sending {
  std::span<const Piece> pieces = {};  // the same for all receivers
  /// With pieces: as check_copy() (state_hash.hpp) keeps them for the next transfer.
  std::vector<Hash128>* blocks = nullptr;
  Parallel parallel = {};
};
/// Rank 0: sends the side of `mine` that holds `step`, of this layout if one is given, and pins it
/// meanwhile, so that it is not overwritten. not_found: `mine` does not hold the step; the receivers get
/// not_found, too. mismatch: as below; the side is forgotten. Other errors as below.
Status send_state(Collective& c, TrainState& mine, uint64_t step,
                  std::optional<uint32_t> layout = std::nullopt, const Sending& of = {});
/// Rank 0: sends a copy that is elsewhere, such as one kept for a peer. hash: the hash at commit;
/// zero: unknown. bad_data: a receiver got other bytes; that receiver fails, too. aborted: a receiver
/// could not take the copy, about which that says nothing. mismatch: the copy is not what was
/// committed (STATE-2); then all receivers fail, with not_found if nothing was sent. aborted, deadline,
/// unavailable: of the communicator.
Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step,
                  const Hash128& hash = {}, const Sending& of = {});
/// Rank 0 has no copy to send: all receivers get not_found.
Status send_nothing(Collective& c, uint64_t step);

/// Every other rank: receives the state into one side of `mine` and returns its state_hash(), for
/// the commit. Keeps the side that holds `step` (of any shard), or else the committed side, and
/// writes the other side. from: the sender's name, for messages. timeout_ms: how long readers may
/// keep that other side pinned. bad_data: wrong step or size, or damaged in transfer; the written
/// side is then empty. deadline: a reader kept its pin. not_found: the sender does not hold the
/// step. Other errors as send_state().
Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms);

/// What a receiver does with a shard.
struct Receipt {
  size_t values = 0;  // floats that come: floats_of()
  /// Returns the side that is written. Its error fails the transfer on all ranks.
  std::function<Result<TrainState::Side>()> room;
  /// The pieces of a shard that come, as the sender has them; empty: the whole shard. Then the side has
  /// the shard's size.
  std::span<const Piece> pieces;
};
/// Floats of these pieces in all parts of a state; without pieces, of the whole shard of so many
/// elements.
size_t floats_of(const StateFormat& format, std::span<const Piece> pieces, size_t whole);
/// The same as receive_state() with this receipt. Returns the hash of what was sent: of a whole shard
/// its state_hash().
Result<Hash128> receive_state(Collective& c, const Receipt& receipt, uint64_t step,
                              const std::string& from);
/// Makes all elements of a side zero that none of these pieces has brought: it may hold older values, and
/// padding must be zero.
void clear_padding(const TrainState::Side& to, std::vector<Piece> pieces);
/// Copies pieces, at least one, between two sides of one format. mismatch: the blocks in which they lie
/// no longer have these hashes, of all blocks of `from`, if any are given.
Status take_pieces(const TrainState::Side& from, const TrainState::Side& to,
                   std::span<const Piece> pieces, const Parallel& parallel = {},
                   std::span<const Hash128> blocks = {});

}  // namespace simplescale
