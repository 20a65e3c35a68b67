// Moves a shard's training state from one trainer to others over a communicator of its own: rank 0
// sends, all others receive. In chunks, so that neither side needs a second copy; everything is
// hashed on both ends. The compute thread of each rank calls it.
//
// What a receiver held at the step that is moved survives: it is written to the other side only,
// and not committed. Afterwards, once all transfers of the generation are done:
//   TrainState::commit_as(hash of the new layout, step), then Engine::attach().
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Rank 0: the side of `mine` that holds `step`; pinned meanwhile, so that nobody overwrites it.
/// not_found if there is none; then the receivers are told so. Else as below.
Status send_state(Collective& c, TrainState& mine, uint64_t step);
/// Rank 0: a copy that lies elsewhere, as that of a peer. hash: what was committed; zero: not
/// known. bad_data: a receiver got something else (it says so, too). mismatch: the copy is not what
/// was committed (STATE-2); all receivers find that out, too. aborted, deadline, unavailable: of the
/// communicator.
Status send_state(Collective& c, const TrainState::Side& copy, uint64_t step,
                  const Hash128& hash = {});

/// Every other rank. If `mine` holds `step` (of whatever shard), that side is kept, else the
/// committed one; the other is written. from: the sender's name, for messages. timeout_ms: for
/// readers to let go of the side that is to be written.
/// bad_data: another step or size than asked for, or damaged on the way; the side is empty then.
/// deadline: of a reader. not_found: the sender does not have it. As send_state(). Returns the
/// state_hash() of what came, to be committed with it.
Result<Hash128> receive_state(Collective& c, TrainState& mine, uint64_t step,
                              const std::string& from, int timeout_ms);

}  // namespace simplescale
