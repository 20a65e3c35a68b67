// The standby actor, on another node than the supervisor: stores the state that the supervisor is
// about to act on, and notices the supervisor's loss. It only says when to claim the next epoch;
// which claim succeeds is settled by the epoch files (runtime/run/epoch.hpp).
//
//   - The supervisor's process has ended (its connection broke): take over at once.
//   - The supervisor is silent: take over once its heartbeat in the run folder has stopped as well,
//     so that a broken link alone deposes no supervisor. If the heartbeat continues for 4 s, the
//     standby ends, and the supervisor appoints another one.
//
// Runs on the transport thread or a CAF worker; never blocks.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/local.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/run/epoch.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct StandbyOptions {
  std::string node, address;
  std::shared_ptr<EpochWatch> watch;
  /// Called once, at the end. state: to take over with; none: this standby is not needed any more.
  /// silent: the supervisor's loss was noticed by silence.
  std::function<void(std::optional<SupervisorState> state, std::string reason, bool silent)> ended;
};

struct StandbyState {
  static inline const char* name = "standby";
  StandbyOptions options;
  caf::actor supervisor;
  std::optional<SupervisorState> replica;  // the newest
  bool lost = false;                       // the supervisor is, for `reason`
  int64_t lost_at_ms = 0;                  // actor clock
  std::string reason;
};

namespace local {
/// The epoch watch -> standby: what the epoch files show.
struct LeaderSeen {
  bool answered;    // the run folder could be read
  bool current;     // this start of the run is the current one
  uint64_t newest;  // epoch
  bool lives;       // the newest epoch's heartbeat continues
};
}  // namespace local

caf::behavior standby_actor(caf::stateful_actor<StandbyState>* self, caf::actor supervisor,
                            StandbyOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::LeaderSeen)
