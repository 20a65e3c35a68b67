// Transfers a shard's training state from one trainer to others over a communicator of its own:
// rank 0 sends, all other ranks receive. Sent in chunks, so no rank needs a second copy; both ends
// hash all data. The compute thread of each rank calls it.
//
// A receiver writes to its other side only and commits nothing, so its own copy of the step
// survives. When all transfers of the generation are done, the receiver calls
//   TrainState::commit_as(hash of the new layout, step), then Engine::attach().
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Rank 0: sends the side of `mine` that holds `step`, pinned meanwhile, so that it is not
/// overwritten. not_found: `mine` does not hold the step; the receivers get not_found, too. Else as
/// below.
Status send_state(Collective& c, TrainState& mine, uint64_t step);
/// Rank 0: sends a copy that lies elsewhere, e.g. one kept for a peer. hash: that at commit; zero:
/// not known. bad_data: a receiver could not take it, or got other bytes; that receiver fails, too.
/// mismatch: the copy is not what was committed (STATE-2); then all receivers fail. aborted,
/// deadline, unavailable: of the communicator.
Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step,
                  const Hash128& hash = {});

/// Every other rank: receives the state into one side of `mine` and returns its state_hash(), to be
/// committed with it. Keeps the side that holds `step` (of any shard), else the committed side, and
/// writes the other one. from: the sender's name, for messages. timeout_ms: how long readers may
/// keep the side that is to be written pinned. bad_data: wrong step or size, or damaged in
/// transfer; the written side is empty then. deadline: a reader kept its pin. not_found: the sender
/// does not hold the step. Otherwise as send_state().
Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms);

}  // namespace simplescale
