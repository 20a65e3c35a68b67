#include "actors/restart/child_supervisor.hpp"

#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "runtime/base/log.hpp"

namespace simplescale::restart {
namespace {

struct Tick {
  size_t child;
};

}  // namespace
}  // namespace simplescale::restart

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::restart::Tick)

namespace simplescale::restart {
namespace {

int64_t now_ms(const ChildSupervisor* self) {
  const auto since = self->clock().now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

ExitKind classify(const caf::error& reason) {
  if (!reason || reason == caf::exit_reason::normal) return ExitKind::normal;
  return reason == caf::exit_reason::user_shutdown ? ExitKind::shutdown : ExitKind::abnormal;
}

std::string describe(ChildSupervisor* self, const caf::error& reason) {
  return reason ? self->system().render(reason) : std::string("normal");
}

struct Executor {
  ChildSupervisor* self;
  std::optional<Event>& answer;  // to action::Start

  void operator()(const action::Start& a) const {
    try {
      caf::actor child = self->state.starts[a.child](self);
      self->monitor(child);
      self->state.actors[a.child] = std::move(child);
      answer = event::Started{a.child};
    } catch (const std::exception& error) {
      answer = event::StartFailed{a.child, error.what()};
    }
  }
  void operator()(const action::Stop& a) const {
    self->send_exit(self->state.actors[a.child], caf::exit_reason::user_shutdown);
  }
  void operator()(const action::Kill& a) const {
    self->send_exit(self->state.actors[a.child], caf::exit_reason::kill);
  }
  void operator()(const action::Arm& a) const {
    self->delayed_send(self, std::chrono::milliseconds(a.delay_ms), Tick{a.child});
  }
  void operator()(const action::Terminate& a) const {
    self->quit(a.requested ? self->state.stop_reason : caf::error(caf::exit_reason::user_shutdown));
  }
  void operator()(const action::Report& a) const {
    log::line(a.warning ? log::Level::warn : log::Level::info, "{}: {}", self->state.name, a.text);
  }
};

/// Decides on an event and on the answers to the starts that follow from it.
void handle(ChildSupervisor* self, Event first) {
  std::optional<Event> next = std::move(first);
  while (next) {
    Reaction reaction = react(now_ms(self), std::move(self->state.tree), *next);
    self->state.tree = std::move(reaction.tree);
    next.reset();
    for (const Action& action : reaction.actions) std::visit(Executor{self, next}, action);
  }
}

void actor_ended(ChildSupervisor* self, const caf::down_msg& down) {
  std::vector<caf::actor>& actors = self->state.actors;
  for (size_t child = 0; child < actors.size(); ++child) {
    if (!actors[child] || actors[child].address() != down.source) continue;
    actors[child] = nullptr;
    return handle(self, event::Exited{child, classify(down.reason), describe(self, down.reason)});
  }
}

void exit_requested(ChildSupervisor* self, const caf::error& reason) {
  if (classify(reason) == ExitKind::normal) return;
  if (!self->state.stop_reason) self->state.stop_reason = reason;
  handle(self, event::Stop{describe(self, reason)});
}

void progress_made(ChildSupervisor* self, const std::string& id) {
  const std::vector<ChildState>& children = self->state.tree.children;
  for (size_t child = 0; child < children.size(); ++child)
    if (children[child].spec.id == id) return handle(self, event::Progress{child});
}

void set_handlers(ChildSupervisor* self) {
  self->set_down_handler([self](const caf::down_msg& down) { actor_ended(self, down); });
  self->set_exit_handler([self](const caf::exit_msg& exit) { exit_requested(self, exit.reason); });
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

ChildSupervisorState::~ChildSupervisorState() {
  for (const caf::actor& child : actors)
    if (child) caf::anon_send_exit(child, caf::exit_reason::kill);
}

caf::behavior child_supervisor(ChildSupervisor* self, ChildSupervisorOptions options) {
  ChildSupervisorState& state = self->state;
  std::vector<ChildSpec> specs;
  for (Child& child : options.children) {
    specs.push_back(std::move(child.spec));
    state.starts.push_back(std::move(child.start));
  }
  state.name = std::move(options.name);
  state.actors.resize(specs.size());
  state.tree = make_tree(options.limits, specs);
  set_handlers(self);
  handle(self, event::Begin{});
  if (state.tree.stage == TreeState::Stage::terminated)
    return {};  // a behavior would keep it alive
  return {
      [self](const Tick& tick) { handle(self, event::TimerFired{tick.child}); },
      [self](const Progress& progress) { progress_made(self, progress.child); },
  };
}

}  // namespace simplescale::restart
