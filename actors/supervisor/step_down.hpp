// How a leader lets another process lead. Blocks on the disk, so no actor may call it. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "actors/supervisor/claim.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/base/status.hpp"
#include "runtime/run/epoch.hpp"

namespace simplescale::supervisor {

/// How long a journal waits for the disk to take the last records.
inline constexpr int64_t kFlushTimeoutMs = 10'000;

/// The line in events.jsonl of a supervisor that ends before it has begun.
nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why);

/// Ends the heartbeat of `watch`, writes the queued records, then resigns. Nothing of this
/// supervisor is written after that.
void resign(const EpochFiles& files, uint64_t epoch, EpochWatch& watch, Journal& journal);

/// JOB-1: resigns from `epoch`, which the claimant has claimed, since it cannot read what a leader
/// needs. The trainers keep what their memory holds. The next leader finds `state` in the run's
/// folder: a disk that refuses it is tried again, until another process leads or the claimant's
/// Patience ends. state: the newest that a standby has, perhaps alone; it may not have been compared
/// with those in the folder (read_left_state()). Null: this process was no standby. generation: the
/// highest that is known. Returns `why`.
Status leave_unprepared(const Claimant& claimant, uint64_t epoch, uint64_t generation,
                        const SupervisorState* state, EpochWatch& watch, const Status& why);

}  // namespace simplescale::supervisor
