// A supervisor for CAF actors with the semantics of Erlang/OTP's `supervisor`: it starts its
// children in order, restarts children that die as their specifications say, and stops them in
// reverse order. Depends on CAF and on no other actor of this program. Carries out the decisions of
// decide.hpp.
//
//   using namespace simplescale::supervision;
//   SupervisorOptions options;
//   options.name = "workers";
//   options.spec.strategy = Strategy::rest_for_one;
//   options.spec.intensity = {.max_restarts = 3, .within_ms = 10'000};
//   options.children = {
//       {.spec = {.id = "store"},
//        .start = [](caf::scheduled_actor* parent) { return parent->spawn(store, folder); }},
//       {.spec = {.id = "reader", .restart = Restart::transient}, .start = start_reader},
//       supervisor_child("pool", pool_options)};  // trees: a supervisor is a child like any other
//   auto supervisor = system.spawn<caf::detached>(supervisor_actor, options);
//
//   self->request(supervisor, timeout, WhichChildren{}).then(show, give_up);
//   self->send(supervisor, Progress{});  // a step was committed: forget the restarts
//   self->send_exit(supervisor, caf::exit_reason::user_shutdown);  // stops all, last child first
//
// The supervisor owns its children from start to end.
//
//   Start functions  run in the supervisor's handler and must not block. A start function spawns an
//                    actor, or finds one (adoption), and returns it; or returns an error; or an
//                    invalid handle to start nothing. It must not link the child to the supervisor,
//                    which monitors it.
//   Started          when the start function returns; with reports_started, when the child has sent
//                    ChildStarted to the supervisor.
//   Exit reasons     no error is `normal`, user_shutdown is OTP's `shutdown`, all others are
//                    abnormal.
//   Death            a supervisor that is killed, or dies of an exception in an observer, kills its
//                    children.
//   Time, threads    time is the actor clock's, so tests can drive it. All code runs in the
//                    handlers of the supervisor.
#pragma once

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/behavior.hpp>
#include <caf/expected.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/otp/decide.hpp"

namespace simplescale::supervision {

using StartFunction = std::function<caf::expected<caf::actor>(caf::scheduled_actor* parent)>;

struct Child {
  ChildSpec spec;
  StartFunction start;
};

struct Report {
  int64_t at_ms;  // actor clock
  std::string supervisor;
  ReportKind kind;
  std::string child;  // empty: about the supervisor
  uint64_t instance;
  std::string why;  // for users
};
/// Called in the supervisor's handler; must not block. May send messages.
using Observer = std::function<void(const Report&)>;

struct SupervisorOptions {
  std::string name = "supervisor";
  SupervisorSpec spec;
  std::vector<Child> children;  // in start order; spawning asserts validate() of decide.hpp
  Observer observer;            // empty: reports go to the log
  /// Restart budgets that outlive the supervisor: give the same object to its next life. Null: they
  /// end with the supervisor, as in OTP. Must not be shared by two supervisors that live at once.
  std::shared_ptr<Budgets> budgets;
  /// Receives ChildStarted once all children have started; set by supervisor_child().
  caf::actor starter;
};

// Messages to a supervisor, inside one process. The first four are answered by a ChildAnswer.
/// Adds a child at the end of the start order.
struct StartChild {
  Child child;
};
/// Stops a child and cancels its restart. Keeps its specification unless the child is temporary.
struct TerminateChild {
  std::string id;
};
/// Starts a stopped child.
struct RestartChild {
  std::string id;
};
/// Removes the specification of a stopped child.
struct DeleteChild {
  std::string id;
};
/// Answered by std::vector<ChildHandle>, in start order.
struct WhichChildren {};
/// Answered by ChildCounts.
struct CountChildren {};
/// Forgets the restarts of these children; of all if empty. Not answered.
struct Progress {
  std::vector<std::string> ids;
};
/// From a child with reports_started to its supervisor. Not answered.
struct ChildStarted {};

struct ChildAnswer {
  Answer answer;
  std::string why;
  caf::actor child;  // invalid if the child does not live
};
struct ChildHandle {
  ChildInfo info;
  caf::actor actor;  // invalid if the child does not live
};

struct SupervisorActorState {
  ~SupervisorActorState();

  struct Life {
    std::string id;
    caf::actor actor;
  };
  std::string name;
  SupervisorState core;
  std::map<uint64_t, StartFunction> starts;  // by ChildSpec::tag, which the actor sets
  std::map<uint64_t, Life> lives;            // by instance
  std::map<uint64_t, caf::typed_response_promise<ChildAnswer>> requests;
  uint64_t last_number = 0;  // the newest number of a request or tag
  std::deque<Event> inbox;
  bool deciding = false;
  caf::error stop_reason;
  Observer observer;
  std::shared_ptr<Budgets> budgets;
  caf::actor starter;
};

using SupervisorActor = caf::stateful_actor<SupervisorActorState>;
caf::behavior supervisor_actor(SupervisorActor* self, SupervisorOptions options);

enum class Threading : uint8_t { pooled, detached };
/// A supervisor as a child. It has started when all of its children have; its stop has no deadline.
Child supervisor_child(std::string id, SupervisorOptions options,
                       Restart restart = Restart::permanent,
                       Threading threading = Threading::pooled);

}  // namespace simplescale::supervision

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::StartChild)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::TerminateChild)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::RestartChild)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::DeleteChild)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::WhichChildren)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::CountChildren)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::Progress)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::ChildStarted)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::ChildAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::ChildCounts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::ChildHandle)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(std::vector<simplescale::supervision::ChildHandle>)
