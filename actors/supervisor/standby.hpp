// The standby actor, on another node than the supervisor. It stores the state before the supervisor
// acts on it, and notices the loss of the supervisor. It only says when to claim the next term
// (failover.hpp); the term files decide which claim succeeds (runtime/run/term.hpp).
//
// Runs on the transport thread or a CAF worker; never blocks.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/local.hpp"
#include "actors/supervisor/failover.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/run/term.hpp"
#include "transport/caf/message_types.hpp"

namespace simplescale {

struct StandbyOptions {
  std::string node, address;
  std::shared_ptr<TermWatch> watch;
  /// Called once, at the end. state: the state to take over with; none: this standby is not needed
  /// any more. silent: the supervisor stopped answering; its process may be alive.
  std::function<void(std::optional<SupervisorState> state, Reason reason, bool silent)> ended;
};

struct StandbyState {
  static inline const char* name = "standby";
  StandbyOptions options;
  caf::actor supervisor;
  std::optional<SupervisorState> replica;  // the newest
  Failover failover;
};

caf::behavior standby_actor(caf::stateful_actor<StandbyState>* self, caf::actor supervisor,
                            StandbyOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::LeaderSeen)
