#include "actors/restart/restart_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "runtime/base/splitmix64.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::restart {
namespace {

using Stage = TreeState::Stage;
using Phase = ChildPhase;

/// Records a restart. Returns how many the window has with it, at most max_restarts + 1.
uint64_t spend(ChildState& child, const RestartLimits& limits, int64_t now_ms) {
  auto& restarts = child.restarts_ms;
  restarts.push_back(now_ms);
  ++child.attempts;
  while (now_ms - restarts.front() > limits.within_ms) restarts.pop_front();
  if (restarts.size() > uint64_t{limits.max_restarts} + 1) restarts.pop_front();
  return restarts.size();
}

class Policy {
 public:
  Policy(int64_t now_ms, TreeState tree) : now_ms_(now_ms), tree_(std::move(tree)) {}

  Reaction react(const Event& event) {
    std::visit([this](const auto& e) { on(e); }, event);
    return {std::move(tree_), std::move(actions_)};
  }

 private:
  ChildState& at(size_t child) { return tree_.children.at(child); }
  bool stopping() const {
    return tree_.stage == Stage::stopping || tree_.stage == Stage::terminated;
  }
  void report(bool warning, std::string text) {
    actions_.emplace_back(action::Report{warning, std::move(text)});
  }

  // ------------------------------------------------------------------ starts and restarts

  void on(const event::Begin&) { start_next(); }

  void on(const event::Started& e) {
    ChildState& child = at(e.child);
    SS_ASSERT(child.phase == Phase::starting);
    child.phase = Phase::running;
    report(false, fmt::format("{} started", child.spec.id));
    if (tree_.stage == Stage::starting) start_next();
  }

  void on(const event::StartFailed& e) {
    ChildState& child = at(e.child);
    SS_ASSERT(child.phase == Phase::starting);
    child.phase = Phase::stopped;
    const std::string what = fmt::format("failed to start {}: {}", child.spec.id, e.why);
    report(true, what);
    if (tree_.stage == Stage::starting) return stop_all(false, what);
    restart(e.child, fmt::format("the restart of {} failed", child.spec.id));
  }

  void on(const event::Exited& e) {
    ChildState& child = at(e.child);
    const std::string how = fmt::format("{} exit: {}", to_string(e.kind), e.why);
    if (child.phase != Phase::running) return stopped(child, e.kind, how);
    if (stopping()) {
      child.phase = Phase::ended;
      return;
    }
    child.phase = Phase::stopped;
    const std::string what = fmt::format("{} ended ({})", child.spec.id, how);
    report(true, what);
    if (child.spec.restart == Restart::permanent || e.kind == ExitKind::abnormal)
      restart(e.child, what);
  }

  void on(const event::TimerFired& e) {
    ChildState& child = at(e.child);
    if (child.phase == Phase::waiting) return start(e.child);
    if (child.phase != Phase::stopping) return;  // a stale timer
    child.phase = Phase::killed;
    actions_.emplace_back(action::Kill{e.child});
    report(true, fmt::format("{} did not stop within {} ms: killed", child.spec.id, kStop_ms));
  }

  void on(const event::Progress& e) {
    at(e.child).restarts_ms.clear();
    at(e.child).attempts = 0;
  }

  /// Starts the first child that has not been started yet.
  void start_next() {
    const auto next = std::ranges::find(tree_.children, Phase::stopped, &ChildState::phase);
    if (next != tree_.children.end())
      return start(static_cast<size_t>(next - tree_.children.begin()));
    tree_.stage = Stage::running;
    report(false, "all children have started");
  }

  void start(size_t child) {
    at(child).phase = Phase::starting;
    actions_.emplace_back(action::Start{child});
  }

  /// what: why the child has to be restarted.
  void restart(size_t index, const std::string& what) {
    ChildState& child = at(index);
    const RestartLimits& limits = tree_.limits;
    const uint64_t count = spend(child, limits, now_ms_);
    if (count > limits.max_restarts) {
      const std::string why =
          fmt::format("{}; restart {} within {} ms, at most {} allowed: gives up", what, count,
                      limits.within_ms, limits.max_restarts);
      report(true, why);
      return stop_all(false, why);
    }
    const int64_t delay_ms = restart_delay_ms(limits, child.attempts, tree_.draws++);
    report(false, fmt::format("{}; restart {} of at most {} within {} ms: restarts {}{}", what,
                              count, limits.max_restarts, limits.within_ms, child.spec.id,
                              delay_ms > 0 ? fmt::format(" in {} ms", delay_ms) : ""));
    if (delay_ms == 0) return start(index);
    child.phase = Phase::waiting;
    actions_.emplace_back(action::Arm{index, delay_ms});
  }

  // ------------------------------------------------------------------ stops

  void on(const event::Stop& e) {
    if (stopping()) return;
    report(false, fmt::format("asked to stop: {}", e.why));
    stop_all(true, e.why);
  }

  void stop_all(bool requested, const std::string& why) {
    tree_.stage = Stage::stopping;
    tree_.stop_requested = requested;
    tree_.stop_why = why;
    for (ChildState& child : tree_.children)
      if (child.phase == Phase::waiting) child.phase = Phase::stopped;
    stop_next();
  }

  /// Asks the last child that lives to exit; without one, the supervisor ends.
  void stop_next() {
    for (size_t i = tree_.children.size(); i-- > 0;) {
      ChildState& child = at(i);
      if (child.phase == Phase::running) {
        child.phase = Phase::stopping;
        actions_.emplace_back(action::Stop{i});
        actions_.emplace_back(action::Arm{i, kStop_ms});
        return;
      }
      if (child.phase == Phase::ended)
        report(false, fmt::format("{} had already ended", child.spec.id));
      child.phase = Phase::stopped;
    }
    tree_.stage = Stage::terminated;
    report(false, fmt::format("terminates: {}", tree_.stop_why));
    actions_.emplace_back(action::Terminate{tree_.stop_requested});
  }

  /// A child that was asked to exit has exited. It should end with `shutdown`; one that is not
  /// permanent may also end normally.
  void stopped(ChildState& child, ExitKind kind, const std::string& how) {
    SS_ASSERT(child.phase == Phase::stopping || child.phase == Phase::killed);
    const bool expected = child.phase == Phase::killed || kind == ExitKind::shutdown ||
                          (kind == ExitKind::normal && child.spec.restart == Restart::transient);
    report(!expected, fmt::format("{} stopped ({})", child.spec.id, how));
    child.phase = Phase::stopped;
    stop_next();
  }

  const int64_t now_ms_;
  TreeState tree_;
  std::vector<Action> actions_;
};

}  // namespace

int64_t restart_delay_ms(const RestartLimits& limits, uint32_t attempts, uint64_t draw) {
  const double full = std::min(
      static_cast<double>(limits.max_delay_ms),
      std::ldexp(static_cast<double>(limits.first_delay_ms), static_cast<int>(attempts - 1)));
  const double uniform = static_cast<double>(splitmix64_at(0, draw) >> 11) * 0x1.0p-53;  // [0, 1)
  return static_cast<int64_t>(full * (1.0 - 0.5 * uniform));
}

TreeState make_tree(const RestartLimits& limits, const std::vector<ChildSpec>& children) {
  TreeState tree;
  tree.limits = limits;
  for (const ChildSpec& spec : children) tree.children.push_back({.spec = spec});
  return tree;
}

Reaction react(int64_t now_ms, TreeState tree, const Event& event) {
  return Policy(now_ms, std::move(tree)).react(event);
}

const char* to_string(ExitKind value) {
  switch (value) {
    case ExitKind::normal:
      return "normal";
    case ExitKind::shutdown:
      return "shutdown";
    case ExitKind::abnormal:
      return "abnormal";
  }
  return "?";
}

}  // namespace simplescale::restart
