// How a process claims an epoch, by which it becomes the supervisor. A process claims only after the
// newest supervisor is known to be lost (succession.hpp, or is_alive() here). Also reads the number
// and the state that a leader needs.
//
// Functions of the files in the run's folder. They block as long as the file system does, and pause
// between two looks at the files, so no actor may call them. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "actors/supervisor/records_end.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/base/retries.hpp"
#include "runtime/base/status.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale::supervisor {

/// How often a new supervisor tries to read a file of the run: for 15 s in all.
inline constexpr Retries kReadRetries{4, std::chrono::seconds(1)};

/// Between two tries of what fails as long as the folder does.
inline constexpr std::chrono::milliseconds kTryAgain{100};

/// A process that claims an epoch.
struct Claimant {
  RunFolder run;
  std::string instance;         // id of this start of the run
  std::string node;             // that the process runs on
  std::string address;          // of the process's transport
  EpochFiles files;             // of this run and instance
  int64_t join_timeout_ms = 0;  // of the configuration: how long Patience lasts without agents
  /// True if a supervisor answers at this address. May block for some seconds.
  std::function<bool(const std::string& address)> answers;
  Retries read_retries = kReadRetries;
  /// Called to wait until the files may have changed.
  std::function<void(std::chrono::milliseconds)> pause = [](std::chrono::milliseconds time) {
    std::this_thread::sleep_for(time);
  };
};

/// What the claimant knows of the supervisor before it.
struct Predecessor {
  uint64_t epoch = 0;                    // 0: the claimant is the run's first supervisor
  std::optional<SupervisorState> state;  // as replicated to the standby
  std::string lost;                      // why it is counted as lost
  int64_t lost_at_ms = 0;                // by the actor clock
  bool silent = false;                   // true: it stopped answering; its process may be alive
  bool stood_by = false;                 // the claimant was its standby
};

/// How long a process that may be alone to have the newest state tries to keep it (JOB-1): while
/// agents live, or the run's folder fails, so that it cannot know; and for join_timeout_ms in any
/// case.
class Patience {
 public:
  explicit Patience(const Claimant& claimant)
      : run_(claimant.run),
        until_(std::chrono::steady_clock::now() +
               std::chrono::milliseconds(claimant.join_timeout_ms)) {}
  bool lasts() const;

 private:
  RunFolder run_;
  std::chrono::steady_clock::time_point until_;
};

/// What was known when an epoch was claimed.
struct Claim {
  bool ours = false;        // false: another process leads
  uint64_t generation = 0;  // the highest that was given out, as far as was read
  uint64_t above = 0;       // as Epoch::generation (GEN-2)
  Status known;             // if not ok: why the run cannot go on
};

/// LEAD-1: true while no newer supervisor than that of `epoch` leads. io: that cannot be read now.
MayWrite leads(EpochFiles files, uint64_t epoch);

/// True if the supervisor of this epoch answers, or if its heartbeat in the run's folder continues:
/// a supervisor that cannot be reached may still be alive. Pauses for kHeartbeatTimeoutMs if it does
/// not answer. io: the heartbeat cannot be read, which deposes no supervisor (LEAD-1).
Result<bool> is_alive(const Claimant& claimant, const Epoch& epoch);

/// True if this epoch's supervisor resigned because of votes that other nodes still renew: one of
/// those nodes leads next, not the claimant's. Pauses for kHeartbeatTimeoutMs if there are such
/// votes. io.
Result<bool> was_voted_out(const Claimant& claimant, const Epoch& epoch);

/// Reads what a leader has to know. LEAD-1: a supervisor that lost its standby, or was lost by it,
/// may have gone on deciding. If the state that it left in the run's folder is newer, that state
/// replaces the standby's. `generation` is raised to the highest that was given out. bad_data: the
/// number of the newest generation is damaged; else errors as read_left_state().
Status read_known(const Claimant& claimant, Predecessor& before, uint64_t& generation);

/// Claims the epoch after that of `before`. A process that was no standby reads what a leader has to
/// know first: if it cannot, another one may lead. JOB-1: a standby may be the only process that has
/// the newest state. So it claims before it reads, and tries again after an error, as on a full
/// disk, until it has claimed, another process leads, or its Patience ends. io: a file cannot be
/// read or written.
Result<Claim> claim_next(const Claimant& claimant, Predecessor& before);

}  // namespace simplescale::supervisor
