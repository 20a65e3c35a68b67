// Resigning: a leader gives up leadership, so that another process can lead. Blocks on the disk, so
// no actor may call it. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "actors/supervisor/claim.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/base/status.hpp"
#include "runtime/run/term.hpp"

namespace simplescale::supervisor {

/// How long a journal waits for the disk to take the last records.
inline constexpr int64_t kFlushTimeoutMs = 10'000;

/// The line of events.jsonl for a supervisor that ends before it has begun to work.
nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why);

/// Resigns: ends the heartbeat of `watch`, writes the queued records, and marks the term as
/// resigned. Writes nothing after that.
void resign(const TermFiles& files, uint64_t term, TermWatch& watch, Journal& journal);

/// JOB-1: resigns from `term`, which the candidate has claimed, because it cannot read
/// what a leader needs. The trainers stay, with the state in their memory. Before it resigns, it
/// writes `state` to the run folder for the next leader. If the disk refuses that, it tries again
/// until another process leads or the candidate's ClaimDeadline ends. state: the newest state of this
/// standby, perhaps the only copy. It may not have been compared with those in the folder
/// (read_left_state()). Null: this process was no standby. generation: the highest known. Returns
/// `why`.
Status resign_unprepared(const Candidate& candidate, uint64_t term, uint64_t generation,
                         const SupervisorState* state, TermWatch& watch, const Status& why);

}  // namespace simplescale::supervisor
