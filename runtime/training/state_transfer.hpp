// Transfers a shard's training state from one trainer to other trainers, over a communicator of its
// own. Rank 0 sends, all other ranks receive. The state is sent in chunks, so no rank needs a
// second copy; both ends hash all data. The compute thread of each rank calls these functions.
//
// A receiver writes only to its other side and commits nothing, so its own copy of the step
// survives. When all transfers of the generation are done, the receiver calls
//   TrainState::commit_as(hash of the new layout, step), then Engine::attach().
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Rank 0: sends the side of `mine` that holds `step`, and pins it meanwhile, so that it is not
/// overwritten. not_found: `mine` does not hold the step; the receivers get not_found, too. Other
/// errors as below.
Status send_state(Collective& c, TrainState& mine, uint64_t step);
/// Rank 0: sends a copy that is elsewhere, such as one kept for a peer. hash: the hash at commit;
/// zero: unknown. bad_data: a receiver could not take the copy, or got other bytes; that receiver
/// fails, too. mismatch: the copy is not what was committed (STATE-2); then all receivers fail.
/// aborted, deadline, unavailable: of the communicator.
Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step,
                  const Hash128& hash = {});

/// Every other rank: receives the state into one side of `mine` and returns its state_hash(), for
/// the commit. Keeps the side that holds `step` (of any shard), or else the committed side, and
/// writes the other side. from: the sender's name, for messages. timeout_ms: how long readers may
/// keep that other side pinned. bad_data: wrong step or size, or damaged in transfer; the written
/// side is then empty. deadline: a reader kept its pin. not_found: the sender does not hold the
/// step. Other errors as send_state().
Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms);

}  // namespace simplescale
