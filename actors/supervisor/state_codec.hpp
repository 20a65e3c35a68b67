// The supervisor's state as bytes (MessagePack): what its standby keeps, and what lies in
// control/state-<instance> for a supervisor that comes after both have died.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// Everything that a supervisor needs to go on where another one was.
struct SupervisorState {
  job::State job;
  int64_t now_ms = 0;  // by the clock that the times in `job` are of
  uint64_t epoch = 0, sequence = 0;
  uint64_t incidents = 0;
  int64_t incident_since_ms = -1;  // -1: none is going on
  std::string incident_what, incident_decision;
  uint64_t recorded_step = 0;
  bool recorded = false;
  int32_t end_exit = 0;  // once the job is over: what the nodes are told
  std::string end_reason;
  std::vector<InjectFault> planned;  // faults on purpose that are still to come
  std::set<uint64_t> traced;         // steps that are to be traced
};

std::vector<uint8_t> encode(const SupervisorState& state);
/// bad_data: not such a state, or one that makes no sense (a layout of nodes that it does not
/// know).
Result<SupervisorState> decode(std::span<const uint8_t> bytes);
/// Moves all times to another clock, which shows now_ms at the moment that state.now_ms names.
void rebase(SupervisorState& state, int64_t now_ms);

}  // namespace simplescale
