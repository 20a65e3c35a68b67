// The standby of a supervisor, on another node: keeps the state that the supervisor is about to act
// on, and notices when it is lost. Who becomes the next supervisor is settled by the epoch files
// (runtime/run/epoch.hpp); this actor only says when to try.
//
//   - the supervisor's process has ended (its connection broke): at once;
//   - it is silent: when its heartbeat in the run's folder has stopped as well, so that a broken
//     link alone deposes nobody. A standby whose link is broken while the heartbeat goes on is of
//     no use and ends: the supervisor appoints another one.
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
  /// Once: the state to go on with, or none (this standby is not needed any more: `reason`).
  std::function<void(std::optional<SupervisorState> state, std::string reason, bool silent)> ended;
};

struct StandbyState {
  static inline const char* name = "standby";
  StandbyOptions options;
  caf::actor supervisor;
  std::optional<SupervisorState> kept;
  bool lost = false;
  int64_t lost_at_ms = 0;
  std::string why;
};

namespace local {
/// The transport -> standby: the supervisor's process is lost, and why.
struct SupervisorLost {
  std::string reason;
};
/// The epoch watch -> standby.
struct LeaderSeen {
  bool answered, current;
  uint64_t newest;
  bool lives;
};
}  // namespace local

caf::behavior standby_actor(caf::stateful_actor<StandbyState>* self, caf::actor supervisor,
                            StandbyOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::SupervisorLost)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::LeaderSeen)
