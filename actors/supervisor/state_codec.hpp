// The supervisor's state as bytes (MessagePack). The standby stores it, and the run folder keeps it
// in control/state-<instance>-<term> for a supervisor that starts after both have died. Plain data
// and functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/sentence.hpp"
#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

constexpr int64_t no_incident = INT64_MIN;

/// Everything that a supervisor needs to continue where its predecessor stopped.
struct SupervisorState {
  job::State job;
  int64_t now_ms = 0;  // time of the snapshot, by the clock of all times in it
  uint64_t term = 0, sequence = 0;
  uint64_t incidents = 0;
  int64_t incident_since_ms = no_incident;  // less than 0: it began before its clock did
  job::IncidentFacts incident;
  std::string node;            // the supervisor's node
  uint64_t recorded_step = 0;  // newest step that is certainly in the records; if they have none,
                               // the step before their first one
  bool recorded = false;       // recorded_step is known
  int32_t end_exit = 0;        // sent to nodes once the job is over, with end_reason
  std::string end_reason;
  std::vector<InjectFault> planned;  // faults that are still to be injected
  std::set<uint64_t> traced;         // steps that still have to be traced
};

/// True if `a` was decided after `b`.
inline bool is_newer(const SupervisorState& a, const SupervisorState& b) {
  return std::pair(a.term, a.sequence) > std::pair(b.term, b.sequence);
}

/// The file of the run folder that only the supervisor of this term writes. So a supervisor
/// that lost leadership, and wakes in the middle of a write, replaces no page of its successor.
inline std::string state_page(const std::string& instance, uint64_t term) {
  return "control/state-" + instance + "-" + std::to_string(term);
}
std::vector<uint8_t> encode(const SupervisorState& state);
/// bad_data: the bytes are not a supervisor's state, or decide() cannot work with it, as with a
/// layout of unknown nodes.
Result<SupervisorState> decode(std::span<const uint8_t> bytes);
/// Returns the newest state that the supervisors up to `term` of this start have written to the
/// run's folder; nothing if there is none. JOB-3: if a state cannot be read, an older term's state
/// never replaces it. JOB-1: a supervisor that resigned because it could not prepare
/// (resign_unprepared()) has left a state of an older term, so that state is compared with the pages
/// of older terms. io; bad_data: a page is damaged. Blocks.
Result<std::optional<SupervisorState>> read_left_state(const std::string& run,
                                                       const std::string& instance, uint64_t term);
/// Adds by_ms to all times of the job, to exclude a time that does not count, or to change the
/// clock.
void move_times(job::State& job, int64_t by_ms);
/// Converts all times to another clock, whose time of the snapshot is now_ms.
void rebase(SupervisorState& state, int64_t now_ms);

}  // namespace simplescale
