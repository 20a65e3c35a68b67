#include "actors/otp/supervisor_actor.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <utility>

#include "runtime/base/log.hpp"

namespace simplescale::supervision {
namespace {

struct Tick {
  uint64_t token;
};

}  // namespace
}  // namespace simplescale::supervision

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervision::Tick)

namespace simplescale::supervision {
namespace {

int64_t now_ms(const SupervisorActor* self) {
  const auto since = self->clock().now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

ExitKind classify(const caf::error& reason) {
  if (!reason || reason == caf::exit_reason::normal) return ExitKind::normal;
  return reason == caf::exit_reason::user_shutdown ? ExitKind::shutdown : ExitKind::abnormal;
}

std::string describe(SupervisorActor* self, const caf::error& reason) {
  return reason ? self->system().render(reason) : std::string("normal");
}

caf::actor find_actor(const SupervisorActorState& state, const std::string& id) {
  for (const auto& [_, life] : state.lives)
    if (life.id == id) return life.actor;
  return {};
}

/// Carries out actions. Events that result from them, as of a start function, go to the inbox.
struct Executor {
  SupervisorActor* self;
  SupervisorActorState& state;

  void operator()(const action::Start& a) const {
    std::string why;
    try {
      const ChildSpec spec = spec_of(a.id);
      caf::expected<caf::actor> started = state.starts.at(spec.tag)(self);
      if (started && !*started) return state.inbox.push_back(event::Ignored{a.id, a.instance});
      if (started) {
        // A link would stop the supervisor when the child ends, or the child too early.
        self->unlink_from(*started);
        self->monitor(*started);
        state.lives[a.instance] = {a.id, *started};
        if (spec.reports_started) return;
        return state.inbox.push_back(event::Started{a.id, a.instance});
      }
      why = describe(self, started.error());
    } catch (const std::exception& error) {
      why = error.what();
    }
    state.inbox.push_back(event::StartFailed{a.id, a.instance, why});
  }
  ChildSpec spec_of(const std::string& id) const {
    for (const auto& child : state.core.children)
      if (child.spec.id == id) return child.spec;
    return {};
  }
  void send_exit(uint64_t instance, caf::exit_reason reason) const {
    const auto life = state.lives.find(instance);
    if (life != state.lives.end()) self->send_exit(life->second.actor, reason);
  }
  void operator()(const action::Stop& a) const {
    send_exit(a.instance, caf::exit_reason::user_shutdown);
  }
  void operator()(const action::Kill& a) const { send_exit(a.instance, caf::exit_reason::kill); }
  void operator()(const action::Arm& a) const {
    self->delayed_send(self, std::chrono::milliseconds(a.delay_ms), Tick{a.token});
  }
  void operator()(const action::Reply& a) const {
    auto request = state.requests.extract(a.request);
    if (request.empty()) return;
    const caf::actor child = a.answer == Answer::not_found ? caf::actor{} : find_actor(state, a.id);
    request.mapped().deliver(ChildAnswer{a.answer, a.why, child});
  }
  void operator()(const action::Ready&) const {
    if (state.starter) self->send(state.starter, ChildStarted{});
    state.starter = nullptr;
  }
  void operator()(const action::Terminate& a) const {
    self->quit(a.requested ? state.stop_reason : caf::error(caf::exit_reason::user_shutdown));
  }
  void operator()(const action::Report& a) const {
    const Report report{now_ms(self), state.name, a.kind, a.id, a.instance, a.why};
    if (state.observer) return state.observer(report);
    const bool is_failure = a.kind == ReportKind::start_failed || a.kind == ReportKind::exited ||
                            a.kind == ReportKind::killed || a.kind == ReportKind::shutdown_error ||
                            a.kind == ReportKind::escalated;
    log::log(is_failure ? spdlog::level::warn : spdlog::level::info, "{}: {}", state.name, a.why);
  }
};

/// Decides on an event and on those that its actions cause. A call from within an action only
/// queues the event.
void handle(SupervisorActor* self, Event event) {
  SupervisorActorState& state = self->state;
  state.inbox.push_back(std::move(event));
  if (std::exchange(state.deciding, true)) return;
  while (!state.inbox.empty()) {
    const Event next = std::move(state.inbox.front());
    state.inbox.pop_front();
    Decision decision = decide(now_ms(self), std::move(state.core), next);
    state.core = std::move(decision.state);
    if (state.budgets) *state.budgets = state.core.budgets;
    for (const auto& action : decision.actions) std::visit(Executor{self, state}, action);
  }
  state.deciding = false;
  std::erase_if(state.starts, [&](const auto& entry) {
    if (state.requests.contains(entry.first)) return false;  // the child is not added yet
    for (const auto& child : state.core.children)
      if (child.spec.tag == entry.first) return false;
    return true;
  });
}

/// The instance that lives as the actor `source`, or 0.
uint64_t instance_of(const SupervisorActorState& state, const caf::actor_addr& source) {
  for (const auto& [instance, life] : state.lives)
    if (life.actor.address() == source) return instance;
  return 0;
}

void child_exited(SupervisorActor* self, uint64_t instance, const caf::error& reason) {
  const auto life = self->state.lives.extract(instance);
  handle(self, event::Exited{life.mapped().id, instance, classify(reason), describe(self, reason)});
}

void exit_requested(SupervisorActor* self, const caf::error& reason) {
  if (classify(reason) == ExitKind::normal) return;
  if (!self->state.stop_reason) self->state.stop_reason = reason;
  handle(self, event::Stop{describe(self, reason)});
}

void child_started(SupervisorActor* self) {
  const auto sender = caf::actor_cast<caf::actor_addr>(self->current_sender());
  if (const uint64_t instance = instance_of(self->state, sender))
    handle(self, event::Started{self->state.lives.at(instance).id, instance});
}

using Promise = caf::typed_response_promise<ChildAnswer>;

template <class E>
Promise ask(SupervisorActor* self, E event) {
  auto promise = self->make_response_promise<ChildAnswer>();
  event.request = ++self->state.last_number;
  self->state.requests.emplace(event.request, promise);
  handle(self, std::move(event));
  return promise;
}

Promise start_child(SupervisorActor* self, const Child& child) {
  if (!child.start) {
    auto promise = self->make_response_promise<ChildAnswer>();
    promise.deliver(ChildAnswer{Answer::bad_spec, "a child needs a start function", {}});
    return promise;
  }
  ChildSpec spec = child.spec;
  spec.tag = self->state.last_number + 1;  // the number of the request, see ask()
  self->state.starts.emplace(spec.tag, child.start);
  return ask(self, event::StartChild{0, spec});
}

std::vector<ChildHandle> list_children(const SupervisorActorState& state) {
  std::vector<ChildHandle> children;
  for (auto& info : which_children(state.core)) {
    const auto life = state.lives.find(info.instance);
    const bool lives = life != state.lives.end() && life->second.id == info.id;
    children.push_back({std::move(info), lives ? life->second.actor : caf::actor{}});
  }
  return children;
}

void set_up(SupervisorActorState& state, SupervisorOptions options) {
  std::vector<ChildSpec> specs;
  for (auto& child : options.children) {
    SS_ASSERT(child.start != nullptr);
    specs.push_back(child.spec);
    specs.back().tag = ++state.last_number;
    state.starts.emplace(state.last_number, std::move(child.start));
  }
  state.name = std::move(options.name);
  state.observer = std::move(options.observer);
  state.budgets = std::move(options.budgets);
  state.starter = std::move(options.starter);
  state.core = make_state(options.spec, specs, state.budgets ? *state.budgets : Budgets{});
}

void set_handlers(SupervisorActor* self) {
  self->set_down_handler([self](caf::down_msg& m) {
    if (const uint64_t instance = instance_of(self->state, m.source))
      child_exited(self, instance, m.reason);
  });
  self->set_exit_handler([self](caf::exit_msg& m) {
    if (const uint64_t instance = instance_of(self->state, m.source))
      child_exited(self, instance, m.reason);
    else
      exit_requested(self, m.reason);
  });
  self->set_error_handler([self](caf::error& error) {
    log::warn("{}: dropped an error message: {}", self->state.name, describe(self, error));
  });
  self->set_default_handler(
      [](caf::scheduled_actor* me, caf::message_view& message) -> caf::result<caf::message> {
        log::warn("{}: unexpected message: {}", me->name(), caf::to_string(message.content()));
        return caf::sec::unexpected_message;
      });
}

}  // namespace

SupervisorActorState::~SupervisorActorState() {
  for (const auto& [_, life] : lives) caf::anon_send_exit(life.actor, caf::exit_reason::kill);
}

caf::behavior supervisor_actor(SupervisorActor* self, SupervisorOptions options) {
  set_up(self->state, std::move(options));
  set_handlers(self);
  handle(self, event::Begin{});
  if (self->state.core.terminated) return {};  // a behavior would keep the actor alive
  return {
      [self](const Tick& m) { handle(self, event::Timer{m.token}); },
      [self](const ChildStarted&) { child_started(self); },
      [self](const Progress& m) { handle(self, event::Progress{m.ids}); },
      [self](const StartChild& m) { return start_child(self, m.child); },
      [self](const TerminateChild& m) {
        return ask(self, event::TerminateChild{0, m.id});
      },
      [self](const RestartChild& m) {
        return ask(self, event::RestartChild{0, m.id});
      },
      [self](const DeleteChild& m) {
        return ask(self, event::DeleteChild{0, m.id});
      },
      [self](const WhichChildren&) { return list_children(self->state); },
      [self](const CountChildren&) { return count_children(self->state.core); },
  };
}

Child supervisor_child(std::string id, SupervisorOptions options, Restart restart,
                       Threading threading) {
  Child child;
  child.spec.id = std::move(id);
  child.spec.restart = restart;
  child.spec.shutdown_ms = kForever;
  child.spec.is_supervisor = true;
  child.spec.reports_started = true;
  child.start = [options = std::move(options),
                 threading](caf::scheduled_actor* parent) -> caf::expected<caf::actor> {
    SupervisorOptions copy = options;
    copy.starter = caf::actor_cast<caf::actor>(parent);
    if (threading == Threading::detached)
      return parent->spawn<caf::detached>(supervisor_actor, std::move(copy));
    return parent->spawn(supervisor_actor, std::move(copy));
  };
  return child;
}

}  // namespace simplescale::supervision
