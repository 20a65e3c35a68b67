// A supervisor for CAF actors with the semantics of Erlang/OTP's `supervisor`: it starts its
// children in order, restarts those that die as their specification says, and stops them in reverse
// order. Needs CAF and nothing else of this project's actors. What it decides is in decide.hpp;
// this file carries the decisions out.
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
//   self->send(supervisor, Progress{});  // something was committed: budgets start anew
//   self->send_exit(supervisor, caf::exit_reason::user_shutdown);  // stops all, last child first
//
// Owns its children from start to end. A start function runs in the supervisor's handler, so it
// must not block; it spawns (or finds: adoption) an actor and returns it, an error, or an invalid
// handle to start nothing. It must not link the child to the supervisor, which monitors it. A child
// with reports_started has started when it has sent ChildStarted to the supervisor. Exit reasons:
// none is `normal`, user_shutdown is OTP's `shutdown`, everything else is abnormal. If the
// supervisor is killed, or dies of an exception in an observer, it takes its children with it, by
// kill. Time is the actor clock's, so tests can drive it. Runs wherever it is spawned; all of this
// is that actor's thread.
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
  std::string child;  // empty if about the supervisor
  uint64_t instance;
  std::string why;  // for people
};
/// Called in the supervisor's thread; must not block. May send messages.
using Observer = std::function<void(const Report&)>;

struct SupervisorOptions {
  std::string name = "supervisor";
  SupervisorSpec spec;
  std::vector<Child> children;  // in start order; spawning asserts validate() of decide.hpp
  Observer observer;            // none: reports go to the log
  /// Where restart budgets are kept. Give the same one to the next life of this supervisor to keep
  /// them; none: they die with it, as in OTP. Not for two supervisors at once.
  std::shared_ptr<Budgets> budgets;
  /// Gets ChildStarted once all children have started; supervisor_child() sets it.
  caf::actor starter;
};

// Messages to a supervisor, inside one process. The first four are answered by a ChildAnswer.
/// Adds a child at the end of the start order.
struct StartChild {
  Child child;
};
/// Stops a child and cancels its restart; its specification stays, unless it is temporary.
struct TerminateChild {
  std::string id;
};
/// Starts a stopped child.
struct RestartChild {
  std::string id;
};
/// Forgets a stopped child.
struct DeleteChild {
  std::string id;
};
/// Answered by std::vector<ChildHandle>, in start order.
struct WhichChildren {};
/// Answered by ChildCounts.
struct CountChildren {};
/// Forgets the restarts of these children, of all if empty. No answer.
struct Progress {
  std::vector<std::string> ids;
};
/// From a child with reports_started to its supervisor. No answer.
struct ChildStarted {};

struct ChildAnswer {
  Answer answer;
  std::string why;
  caf::actor child;  // valid if it lives
};
struct ChildHandle {
  ChildInfo info;
  caf::actor actor;  // invalid if it does not live
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
  uint64_t last_number = 0;  // of requests and tags
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
/// A supervisor as a child: it has started when all its children have, and has as long as it wants
/// to stop.
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
