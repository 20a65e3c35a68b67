// Keeps the actors of a node alive: starts its children in their order, restarts those that end,
// and stops them in reverse order. Depends on CAF and on no other actor of this program. Carries
// out the decisions of restart_policy.hpp.
//
//   ChildSupervisorOptions options{.name = "n1", .limits = {.max_restarts = 3}};
//   options.children = {
//       {{.id = "store"}, [](caf::scheduled_actor* parent) { return parent->spawn(store, folder); }},
//       {{.id = "reader", .restart = Restart::transient}, start_reader}};
//   auto tree = system.spawn<caf::monitored>(child_supervisor, options);
//
//   self->send(tree, Progress{"reader"});                         // forget its restarts
//   self->send_exit(tree, caf::exit_reason::user_shutdown);       // stops all, last child first
//
//   Start functions  run in the supervisor's handler and must not block. One spawns an actor, which
//                    it must not link to the supervisor, or throws. The child has started when the
//                    function returns.
//   Exit reasons     no error is `normal`, user_shutdown is `shutdown`, all others are abnormal.
//   End              with the reason of the request to stop; with user_shutdown if a child could
//                    not start or needed too many restarts. A supervisor that is killed kills its
//                    children.
//   Time, threads    time is the actor clock's, so tests can drive it. All code runs in the
//                    handlers of the supervisor.
#pragma once

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/behavior.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <functional>
#include <string>
#include <vector>

#include "actors/restart/restart_policy.hpp"

namespace simplescale::restart {

using StartFunction = std::function<caf::actor(caf::scheduled_actor* parent)>;

struct Child {
  ChildSpec spec;  // with an id of its own
  StartFunction start;
};

struct ChildSupervisorOptions {
  std::string name;  // in the log
  RestartLimits limits;
  std::vector<Child> children;  // in start order
};

/// Forgets the restarts of this child. Not answered.
struct Progress {
  std::string child;
};

struct ChildSupervisorState {
  ~ChildSupervisorState();

  std::string name;
  std::vector<StartFunction> starts;  // by child, as the children of `tree`
  std::vector<caf::actor> actors;     // by child; invalid: does not live
  TreeState tree;
  caf::error stop_reason;
};

using ChildSupervisor = caf::stateful_actor<ChildSupervisorState>;
caf::behavior child_supervisor(ChildSupervisor* self, ChildSupervisorOptions options);

}  // namespace simplescale::restart

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::restart::Progress)
