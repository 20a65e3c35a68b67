// Claims a term: a process that claims it becomes the supervisor. A process claims only
// when it knows that the newest supervisor is lost (failover.hpp, or is_alive() here). Also reads
// the generation floor and the state that a leader needs.
//
// Functions of the files in the run's folder. They block as long as the file system does, and they
// sleep between two reads of a file, so no actor may call them. One thread.
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
#include "runtime/run/run_folder.hpp"
#include "runtime/run/term.hpp"

namespace simplescale::supervisor {

/// How often a new supervisor tries to read a file of the run: for 15 s in all.
inline constexpr Retries kReadRetries{4, std::chrono::seconds(1)};

/// Pause between two tries of an operation that fails because the run folder does.
inline constexpr std::chrono::milliseconds kTryAgain{100};

/// A candidate: a process that claims a term.
struct Candidate {
  RunFolder run;
  std::string instance;         // id of this start of the run
  std::string node;             // the node of the process
  std::string address;          // of the process's transport
  TermFiles files;              // of this run and instance
  int64_t join_timeout_ms = 0;  // of the configuration: how long ClaimDeadline lasts without agents
  /// True if a supervisor answers at this address. May block for some seconds.
  std::function<bool(const std::string& address)> supervisor_answers;
  Retries read_retries = kReadRetries;
  /// Sleeps until the files may have changed. Tests replace it.
  std::function<void(std::chrono::milliseconds)> pause = [](std::chrono::milliseconds time) {
    std::this_thread::sleep_for(time);
  };
};

/// What the candidate knows of the supervisor before it.
struct Predecessor {
  uint64_t term = 0;                     // 0: the candidate is the run's first supervisor
  std::optional<SupervisorState> state;  // as the standby got it
  Reason lost;                           // why the supervisor is considered lost
  int64_t lost_at_ms = 0;                // by the actor clock
  bool silent = false;                   // it stopped answering; its process may be alive
  bool stood_by = false;                 // the candidate was its standby
};

/// How long a process keeps trying to save its state, which may be the newest and the only copy
/// (JOB-1): as long as agents live, or the run's folder fails so that it cannot know whether they
/// do, and for at least join_timeout_ms.
class ClaimDeadline {
 public:
  explicit ClaimDeadline(const Candidate& candidate)
      : run_(candidate.run),
        until_(std::chrono::steady_clock::now() +
               std::chrono::milliseconds(candidate.join_timeout_ms)) {}
  bool lasts() const;

 private:
  RunFolder run_;
  std::chrono::steady_clock::time_point until_;
};

/// The result of a claim, and what was known then.
struct Claim {
  bool ours = false;        // false: another process leads
  uint64_t generation = 0;  // the highest generation that was used, as far as it could be read
  uint64_t above = 0;       // as Term::generation (GEN-2)
  Status known;             // if not ok: why the run cannot go on
};

/// LEAD-1: the function returns true while no supervisor of a newer term than `term` leads. io:
/// the term files cannot be read now.
MayWrite leads(TermFiles files, uint64_t term);

/// True if the supervisor of this term answers, or if its heartbeat in the run's folder continues:
/// an unreachable supervisor may be alive. If it does not answer, this sleeps for
/// kHeartbeatTimeoutMs. io: the heartbeat cannot be read. Such an error deposes no supervisor
/// (LEAD-1).
Result<bool> is_alive(const Candidate& candidate, const Term& term);

/// True if this term's supervisor resigned because of votes that other nodes still renew: one of
/// those nodes leads next, not the candidate's. If there are such votes, this sleeps for
/// kHeartbeatTimeoutMs. io.
Result<bool> was_voted_out(const Candidate& candidate, const Term& term);

/// Reads what a leader has to know. LEAD-1: a supervisor and its standby can lose each other, and
/// the supervisor goes on deciding. So if the state in the run's folder is newer, it replaces the
/// standby's. Raises `generation` to the highest that was used. bad_data: the number of the newest
/// generation is damaged; else errors as read_left_state().
Status read_known(const Candidate& candidate, Predecessor& before, uint64_t& generation);

/// Claims the term after that of `before`. A process that was no standby first reads what a leader
/// has to know: if it cannot, another process may lead. JOB-1: a standby may be the only process
/// with the newest state. So a standby claims before it reads. After an error, as on a full disk,
/// it tries again until it has claimed, another process leads, or its ClaimDeadline ends. io: a file
/// cannot be read or written.
Result<Claim> claim_next(const Candidate& candidate, Predecessor& before);

}  // namespace simplescale::supervisor
