// How a leader lets another process lead. Blocks on the disk, for a bounded time, so no actor may
// call it. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/base/status.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale::supervisor {

/// A supervisor that has claimed an epoch.
struct Leader {
  RunFolder run;
  std::string instance;  // id of this start of the run
  std::string node;      // that the process runs on
  EpochFiles files;      // of this run and instance
  uint64_t epoch = 0;
  uint64_t generation = 0;  // the highest that is known
};

/// How long a journal waits for the disk to take the last records.
inline constexpr int64_t kFlushTimeoutMs = 10'000;

/// The line in events.jsonl of a supervisor that ends before it has begun.
nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why);

/// Ends the heartbeat of `watch`, writes the queued records, then resigns. Nothing of this
/// supervisor is written after that.
void resign(const EpochFiles& files, uint64_t epoch, EpochWatch& watch, Journal& journal);

/// JOB-1: resigns, since this process cannot read what a leader needs. The trainers keep what their
/// memory holds. The next leader finds `state` in the run's folder. state: the newest that is known,
/// perhaps by this process alone; null: it is not known which one is the newest. Returns `why`.
Status leave_unprepared(const Leader& leader, const SupervisorState* state, EpochWatch& watch,
                        const Status& why);

}  // namespace simplescale::supervisor
