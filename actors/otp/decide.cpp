// The implementation of decide() (decide.hpp). A Decider holds the state during one call: on() is
// called for each event; advance() continues the operation in progress.
#include "actors/otp/decide.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace simplescale::supervision {
namespace {

using Kind = Operation::Kind;

class Decider {
 public:
  Decider(int64_t now_ms, SupervisorState state) : now_ms_(now_ms), s_(std::move(state)) {}

  Decision decide(const Event& event) {
    handle(event);
    for (;;) {
      advance();
      if (busy() || s_.backlog.empty()) break;
      const Event next = std::move(s_.backlog.front());
      s_.backlog.pop_front();
      handle(next);
    }
    if (reason_.empty())
      reason_ = actions_.empty() ? "nothing to do" : "continues the operation in progress";
    return {std::move(s_), std::move(actions_), std::move(reason_)};
  }

 private:
  void handle(const Event& event) {
    std::visit([this](const auto& e) { on(e); }, event);
  }
  bool busy() const { return s_.operation.kind != Kind::none; }
  bool shutting_down() const { return s_.terminated || s_.operation.kind == Kind::shutdown; }

  // Puts an event into the backlog while an operation is in progress; true if it did.
  template <class E>
  bool defer_if_busy(const E& event) {
    if (busy()) s_.backlog.push_back(event);
    return busy();
  }

  ChildState* find(const std::string& id) {
    for (auto& child : s_.children)
      if (child.spec.id == id) return &child;
    return nullptr;
  }
  ChildState* find(const std::string& id, uint64_t instance) {
    ChildState* child = find(id);
    return child != nullptr && child->instance == instance ? child : nullptr;
  }
  void erase(std::string id) {  // by value: the argument may be part of the erased child
    std::erase_if(s_.children, [&](const ChildState& child) { return child.spec.id == id; });
  }

  void add_reason(const std::string& text) {
    if (!reason_.empty()) reason_ += "; ";
    reason_ += text;
  }
  void report(ReportKind kind, const ChildState& child, std::string why) {
    add_reason(why);
    actions_.push_back(action::Report{kind, child.spec.id, child.instance, std::move(why)});
  }
  void report(ReportKind kind, std::string why) {
    add_reason(why);
    actions_.push_back(action::Report{kind, {}, 0, std::move(why)});
  }
  void reply(uint64_t request, Answer answer, const std::string& id, std::string why = {}) {
    add_reason(fmt::format("answers {} about {}", to_string(answer), id));
    actions_.push_back(action::Reply{request, answer, id, std::move(why)});
  }
  uint64_t start_timer(int64_t delay_ms) {
    actions_.push_back(action::Arm{++s_.timers, delay_ms});
    return s_.timers;
  }

  // ------------------------------------------------------------------ life of the children

  void on(const event::Begin&) {
    if (s_.terminated || busy() || s_.instances != 0) return;
    s_.operation.kind = Kind::init;
    for (const auto& child : s_.children) s_.operation.to_start.push_back(child.spec.id);
    add_reason("starts all children");
  }

  void on(const event::Started& e) {
    ChildState* child = find(e.id, e.instance);
    if (child == nullptr || child->phase != Phase::starting || child->start_killed) return;
    child->phase = Phase::running;
    child->timer = 0;
    clear_current(child->spec.id);
    report(ReportKind::started, *child, fmt::format("{} started", e.id));
  }

  void on(const event::Ignored& e) {
    ChildState* child = find(e.id, e.instance);
    if (child == nullptr) return;
    if (child->phase == Phase::stopping) return end_child(*child);
    if (child->phase != Phase::starting) return;
    report(ReportKind::stopped, *child, fmt::format("{} chose not to start", e.id));
    end_child(*child);
  }

  void on(const event::StartFailed& e) {
    ChildState* child = find(e.id, e.instance);
    if (child == nullptr) return;
    if (child->phase == Phase::stopping) return end_child(*child);
    if (child->phase == Phase::starting) start_failed(*child, e.why);
  }

  void on(const event::Exited& e) {
    ChildState* child = find(e.id, e.instance);
    if (child == nullptr) return;
    const std::string how = fmt::format("{} exit: {}", to_string(e.kind), e.why);
    switch (child->phase) {
      case Phase::stopping: {
        // As in OTP: a child that was asked to exit ends with `shutdown`; one that is not permanent
        // may also end normally.
        const bool killed = child->timer == 0;
        const bool expected =
            killed || e.kind == ExitKind::shutdown ||
            (e.kind == ExitKind::normal && child->spec.restart != Restart::permanent);
        report(expected ? ReportKind::stopped : ReportKind::shutdown_error, *child,
               fmt::format("{} stopped ({})", e.id, how));
        return end_child(*child);
      }
      case Phase::starting:
        return start_failed(*child, child->start_killed
                                        ? fmt::format("did not report started within {} ms",
                                                      child->spec.start_timeout_ms)
                                        : how);
      case Phase::running:
        child->down = true;
        if (!defer_if_busy(e)) handle_death(*child, e.kind, how);
        return;
      case Phase::stopped:
      case Phase::restarting:
        return;
    }
  }

  // A running child ended by itself.
  void handle_death(ChildState& child, ExitKind kind, const std::string& how) {
    const std::string what = fmt::format("{} ended ({})", child.spec.id, how);
    report(ReportKind::exited, child, what);
    const bool again = child.spec.restart == Restart::permanent ||
                       (child.spec.restart == Restart::transient && kind == ExitKind::abnormal);
    if (again) return begin_restart(child, what);
    const ChildSpec spec = child.spec;
    mark_stopped(child);
    if (!spec.significant || s_.spec.auto_shutdown == AutoShutdown::never) return;
    const bool others = std::ranges::any_of(s_.children, [](const ChildState& other) {
      return other.spec.significant && other.phase != Phase::stopped;
    });
    if (s_.spec.auto_shutdown == AutoShutdown::all_significant && others) return;
    const std::string why = fmt::format("{}, a significant child: automatic shutdown", what);
    report(ReportKind::auto_shutdown, why);
    shut_down(false, why);
  }

  // No instance of the child lives and no restart is due. Erases a temporary child.
  void mark_stopped(ChildState& child) {
    child.phase = Phase::stopped;
    child.down = child.start_killed = false;
    child.timer = 0;
    if (child.spec.restart == Restart::temporary) erase(child.spec.id);
  }
  // The same for a child that the operation may be waiting for.
  void end_child(ChildState& child) {
    clear_current(child.spec.id);
    mark_stopped(child);
  }
  // No effect if the operation waits for another child: during a shutdown, a child that was
  // starting may end while another one is being stopped.
  void clear_current(const std::string& id) {
    if (s_.operation.current == id) s_.operation.current.clear();
  }

  void start_failed(ChildState& child, const std::string& why) {
    Operation& op = s_.operation;
    const std::string id = child.spec.id;
    const std::string text = fmt::format("failed to start {}: {}", id, why);
    report(ReportKind::start_failed, child, text);
    child.timer = 0;
    child.start_killed = false;
    child.phase = Phase::stopped;
    clear_current(id);
    switch (op.kind) {
      case Kind::init:
        return shut_down(false, text);
      case Kind::restart:
        // As in OTP: the next try counts as another restart, and later children wait for it.
        child.phase = Phase::restarting;
        op = {};
        s_.backlog.push_back(event::Retry{id});
        return;
      case Kind::start_child:
      case Kind::restart_child: {
        const bool forget = op.kind == Kind::start_child;
        reply(op.request, Answer::start_failed, id, text);
        op = {};
        if (forget) erase(id);
        return;
      }
      case Kind::none:
      case Kind::terminate_child:
      case Kind::shutdown:
        return;
    }
  }

  // ------------------------------------------------------------------ restarts

  std::vector<std::string> restart_set(const ChildState& child) const {
    std::vector<std::string> ids;
    bool after = false;
    for (const auto& other : s_.children) {
      const bool self = other.spec.id == child.spec.id;
      after = after || self;
      const bool group = !child.spec.group.empty() && other.spec.group == child.spec.group;
      const Strategy strategy = s_.spec.strategy;
      if (self || strategy == Strategy::one_for_all ||
          (strategy == Strategy::rest_for_one && after) ||
          (strategy == Strategy::group_for_all && group))
        ids.push_back(other.spec.id);
    }
    return ids;
  }

  void begin_restart(ChildState& child, const std::string& what) {
    const std::string id = child.spec.id;
    const Intensity& intensity = s_.spec.intensity;
    child.phase = Phase::stopped;
    child.down = false;
    const Spent spent = spend(s_.budgets, intensity, id, now_ms_);
    const std::string window = intensity.within_ms == kForever
                                   ? std::string("since the last progress")
                                   : fmt::format("within {} ms", intensity.within_ms);
    if (spent.too_many) {
      const std::string why = fmt::format("{}; restart {} {}, at most {} allowed: gives up", what,
                                          spent.count, window, intensity.max_restarts);
      report(ReportKind::escalated, child, why);
      return shut_down(false, why);
    }
    Operation op;
    op.kind = Kind::restart;
    op.subject = id;
    op.due_ms = now_ms_ + back_off_ms(s_.spec.back_off, spent.attempts, s_.draws++);
    const std::vector<std::string> ids = restart_set(child);
    for (const auto& member : ids) {
      const ChildState& other = *find(member);
      if (member != id) op.to_stop.push_front(member);
      if (other.spec.restart != Restart::temporary) op.to_start.push_back(member);
      if (other.phase == Phase::restarting) op.due_ms = std::max(op.due_ms, other.not_before_ms);
    }
    std::string why = fmt::format("{}; restart {} of at most {} {}: {} restarts {}", what,
                                  spent.count, intensity.max_restarts, window,
                                  to_string(s_.spec.strategy), fmt::join(op.to_start, ", "));
    if (op.due_ms > now_ms_) why += fmt::format(" in {} ms", op.due_ms - now_ms_);
    report(ReportKind::restarting, child, why);
    s_.operation = std::move(op);
  }

  void on(const event::Retry& e) {
    ChildState* child = find(e.id);
    if (child == nullptr || child->phase != Phase::restarting || child->timer != 0) return;
    begin_restart(*child, fmt::format("the restart of {} failed", e.id));
  }

  void on(const event::Timer& e) {
    const auto it = std::ranges::find_if(s_.children, [&](const ChildState& child) {
      return e.token != 0 && child.timer == e.token;
    });
    if (it == s_.children.end()) return;
    ChildState& child = *it;
    if (child.phase == Phase::stopping) {
      child.timer = 0;
      kill(child, fmt::format("{} did not stop within {} ms: killed", child.spec.id,
                              child.spec.shutdown_ms));
    } else if (child.phase == Phase::starting) {
      child.timer = 0;
      child.start_killed = true;
      kill(child, fmt::format("{} did not start within {} ms: killed", child.spec.id,
                              child.spec.start_timeout_ms));
    } else if (!defer_if_busy(e)) {
      // The back-off of this child is over, and of all children that are restarted with it.
      s_.operation.kind = Kind::restart;
      s_.operation.subject = child.spec.id;
      for (const auto& other : s_.children)
        if (other.timer == e.token) s_.operation.to_start.push_back(other.spec.id);
      add_reason("back-off over");
    }
  }

  void on(const event::Progress& e) {
    if (e.ids.empty()) s_.budgets.clear();
    for (const auto& id : e.ids) s_.budgets.erase(id);
    add_reason("progress: restarts forgotten");
  }

  // ------------------------------------------------------------------ shutting down

  void on(const event::Stop& e) {
    if (shutting_down()) return;
    report(ReportKind::stopping, fmt::format("asked to stop: {}", e.why));
    shut_down(true, e.why);
  }

  // Drops the operation in progress, stops all children in reverse order, then terminates.
  void shut_down(bool requested, const std::string& why) {
    const Operation old = std::exchange(s_.operation, {});
    const auto refused = [&](uint64_t request, const std::string& id) {
      reply(request, Answer::stopping, id, "the supervisor is stopping");
    };
    if (old.request != 0) refused(old.request, old.subject);
    Operation& op = s_.operation;
    op.kind = Kind::shutdown;
    op.requested = requested;
    op.why = why;
    for (const auto& child : s_.children) {
      if (child.phase == Phase::stopping)
        op.current = child.spec.id;
      else
        op.to_stop.push_front(child.spec.id);
    }
    for (const auto& event : std::exchange(s_.backlog, {})) {
      if (auto* e = std::get_if<event::StartChild>(&event)) refused(e->request, e->spec.id);
      if (auto* e = std::get_if<event::TerminateChild>(&event)) refused(e->request, e->id);
      if (auto* e = std::get_if<event::RestartChild>(&event)) refused(e->request, e->id);
      if (auto* e = std::get_if<event::DeleteChild>(&event)) refused(e->request, e->id);
    }
  }

  // ------------------------------------------------------------------ requests

  template <class E>
  bool defer_or_refuse(const E& e, const std::string& id) {
    if (!shutting_down()) return defer_if_busy(e);
    reply(e.request, Answer::stopping, id, "the supervisor is stopping");
    return true;
  }

  void on(const event::StartChild& e) {
    const std::string& id = e.spec.id;
    if (defer_or_refuse(e, id)) return;
    if (const ChildState* child = find(id)) {
      const bool there = child->phase == Phase::stopped || child->phase == Phase::restarting;
      return reply(e.request, there ? Answer::already_present : Answer::already_started, id,
                   fmt::format("{} is {}", id, to_string(child->phase)));
    }
    if (const Status status = validate(s_.spec, {e.spec}); !status.ok())
      return reply(e.request, Answer::bad_spec, id, status.message());
    s_.children.push_back({.spec = e.spec});
    begin_operation(Kind::start_child, e.request, id).to_start.push_back(id);
  }

  void on(const event::TerminateChild& e) {
    if (defer_or_refuse(e, e.id)) return;
    if (find(e.id) == nullptr) return reply(e.request, Answer::not_found, e.id, "no such child");
    begin_operation(Kind::terminate_child, e.request, e.id).to_stop.push_back(e.id);
  }

  void on(const event::RestartChild& e) {
    if (defer_or_refuse(e, e.id) || refuse_unless_stopped(e)) return;
    begin_operation(Kind::restart_child, e.request, e.id).to_start.push_back(e.id);
  }

  void on(const event::DeleteChild& e) {
    if (defer_or_refuse(e, e.id) || refuse_unless_stopped(e)) return;
    erase(e.id);
    reply(e.request, Answer::ok, e.id);
  }

  template <class E>
  bool refuse_unless_stopped(const E& e) {
    const ChildState* child = find(e.id);
    if (child == nullptr) {
      reply(e.request, Answer::not_found, e.id, "no such child");
    } else if (child->phase == Phase::restarting) {
      reply(e.request, Answer::restarting, e.id, "the child is about to be restarted");
    } else if (child->phase != Phase::stopped) {
      reply(e.request, Answer::running, e.id, "the child is running");
    } else {
      return false;
    }
    return true;
  }

  Operation& begin_operation(Kind kind, uint64_t request, const std::string& subject) {
    s_.operation.kind = kind;
    s_.operation.request = request;
    s_.operation.subject = subject;
    return s_.operation;
  }

  // ------------------------------------------------------------------ the operation in progress

  void advance() {
    while (busy() && s_.operation.current.empty()) {
      Operation& op = s_.operation;
      if (!op.to_stop.empty()) {
        const std::string id = std::move(op.to_stop.front());
        op.to_stop.pop_front();
        if (ChildState* child = find(id)) stop_child(*child);
      } else if (!op.to_start.empty() && op.due_ms > now_ms_) {
        delay_start();
      } else if (!op.to_start.empty()) {
        const std::string id = std::move(op.to_start.front());
        op.to_start.pop_front();
        if (ChildState* child = find(id)) start_child(*child);
      } else {
        finish_operation();
      }
    }
  }

  void start_child(ChildState& child) {
    child.instance = ++s_.instances;
    child.phase = Phase::starting;
    child.timer = 0;
    s_.operation.current = child.spec.id;
    add_reason(fmt::format("starts {}", child.spec.id));
    actions_.push_back(action::Start{child.spec.id, child.instance});
    if (child.spec.start_timeout_ms != kForever)
      child.timer = start_timer(child.spec.start_timeout_ms);
  }

  void stop_child(ChildState& child) {
    const bool lives =
        (child.phase == Phase::running && !child.down) || child.phase == Phase::starting;
    if (!lives) {
      if (child.down)
        report(ReportKind::stopped, child, fmt::format("{} had already ended", child.spec.id));
      return mark_stopped(child);
    }
    child.phase = Phase::stopping;
    child.timer = 0;
    s_.operation.current = child.spec.id;
    if (child.spec.shutdown_ms == kBrutalKill)
      return kill(child, fmt::format("kills {}", child.spec.id));
    add_reason(fmt::format("stops {}", child.spec.id));
    actions_.push_back(action::Stop{child.spec.id, child.instance});
    child.timer =
        child.spec.shutdown_ms == kForever ? ++s_.timers : start_timer(child.spec.shutdown_ms);
  }

  void kill(ChildState& child, std::string why) {
    actions_.push_back(action::Kill{child.spec.id, child.instance});
    report(ReportKind::killed, child, std::move(why));
  }

  void delay_start() {
    Operation& op = s_.operation;
    const uint64_t token = start_timer(op.due_ms - now_ms_);
    for (const auto& id : op.to_start) {
      ChildState& child = *find(id);
      child.phase = Phase::restarting;
      child.timer = token;
      child.not_before_ms = op.due_ms;
    }
    op = {};
  }

  void finish_operation() {
    const Operation op = std::exchange(s_.operation, {});
    switch (op.kind) {
      case Kind::init:
        report(ReportKind::ready, "all children have started");
        actions_.push_back(action::Ready{});
        return;
      case Kind::start_child:
      case Kind::restart_child:
      case Kind::terminate_child:
        return reply(op.request, Answer::ok, op.subject);
      case Kind::shutdown:
        s_.terminated = true;
        report(ReportKind::terminated, fmt::format("terminates: {}", op.why));
        actions_.push_back(action::Terminate{op.requested, op.why});
        return;
      case Kind::none:
      case Kind::restart:
        return;
    }
  }

  const int64_t now_ms_;
  SupervisorState s_;
  std::vector<Action> actions_;
  std::string reason_;
};

}  // namespace

SupervisorState make_state(SupervisorSpec spec, const std::vector<ChildSpec>& children,
                           Budgets budgets) {
  SS_ASSERT(validate(spec, children).ok());
  SupervisorState state;
  state.spec = std::move(spec);
  for (const auto& child : children) state.children.push_back({.spec = child});
  state.budgets = std::move(budgets);
  return state;
}

Decision decide(int64_t now_ms, SupervisorState state, const Event& event) {
  return Decider(now_ms, std::move(state)).decide(event);
}

}  // namespace simplescale::supervision
