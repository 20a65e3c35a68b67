// A simulated supervisor around react() in virtual time: children refuse to start, hang and die as
// the test orders. Checks the invariants of restart_policy.hpp, and the delays, on every action.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/restart/restart_policy.hpp"

namespace simplescale::restart {

class Sim {
 public:
  Sim(const RestartLimits& limits, const std::vector<ChildSpec>& children)
      : tree(make_tree(limits, children)) {}

  // How children behave, by id.
  std::map<std::string, int> refusals;  // number of starts that will fail
  std::set<std::string> stubborn;       // ignore requests to exit

  TreeState tree;
  int64_t now_ms = 1000;
  std::set<std::string> alive;
  std::vector<action::Report> reports;
  std::string log;  // "+a" start, "-a" request to exit, "!a" kill, "end"; cleared by take_log()
  bool terminated = false;

  void begin() { feed(event::Begin{}); }
  void stop() { feed(event::Stop{"test"}); }
  void progress(const std::string& id) { feed(event::Progress{index(id)}); }
  void dies(const std::string& id, ExitKind kind = ExitKind::abnormal) {
    REQUIRE(alive.erase(id) == 1);
    feed(event::Exited{index(id), kind, "test"});
  }
  /// Advances the time and fires the timers that are due.
  void pass(int64_t ms) {
    const int64_t until = now_ms + ms;
    while (!timers_.empty() && timers_.begin()->first <= until) {
      const auto [due_ms, child] = *timers_.begin();
      timers_.erase(timers_.begin());
      now_ms = due_ms;
      feed(event::TimerFired{child});
    }
    now_ms = until;
  }
  int64_t next_timer_in_ms() const {
    return timers_.empty() ? -1 : timers_.begin()->first - now_ms;
  }
  std::string take_log() { return std::exchange(log, {}); }
  ChildPhase phase(const std::string& id) const { return tree.children[index(id)].phase; }
  int64_t warnings(const std::string& text) const {
    return std::ranges::count_if(reports, [&](const action::Report& report) {
      return report.warning && report.text.find(text) != std::string::npos;
    });
  }

 private:
  using Stage = TreeState::Stage;

  size_t index(const std::string& id) const {
    for (size_t i = 0; i < tree.children.size(); ++i)
      if (tree.children[i].spec.id == id) return i;
    FAIL("no child ", id);
    return 0;
  }
  const std::string& id(size_t child) const { return tree.children[child].spec.id; }

  void feed(Event event) {
    inbox_.push_back(std::move(event));
    while (!inbox_.empty()) {
      const Event next = std::move(inbox_.front());
      inbox_.pop_front();
      const bool running = tree.stage == Stage::running;
      if (running) count_failure(next);
      Reaction reaction = react(now_ms, tree, next);
      tree = std::move(reaction.tree);
      if (running && !std::holds_alternative<event::Stop>(next))
        REQUIRE_MESSAGE((tree.stage == Stage::running) == !too_many_, "V4");
      for (const Action& action : reaction.actions)
        std::visit([this](const auto& a) { act(a); }, action);
    }
  }

  /// V4, counted apart from the code under test.
  void count_failure(const Event& event) {
    const auto failed = [&](size_t child) {
      std::vector<int64_t>& times = failures_ms_[child];
      times.push_back(now_ms);
      too_many_ = std::ranges::count_if(times, [&](int64_t time_ms) {
                    return time_ms >= now_ms - tree.limits.within_ms;
                  }) > tree.limits.max_restarts;
    };
    if (const auto* e = std::get_if<event::StartFailed>(&event)) failed(e->child);
    if (const auto* e = std::get_if<event::Progress>(&event)) failures_ms_[e->child].clear();
    if (const auto* e = std::get_if<event::Exited>(&event))
      if (e->kind == ExitKind::abnormal ||
          tree.children[e->child].spec.restart == Restart::permanent)
        failed(e->child);
  }

  void write(const std::string& word) { log += (log.empty() ? "" : " ") + word; }
  int64_t in(ChildPhase phase) const {
    return std::ranges::count(tree.children, phase, &ChildState::phase);
  }

  void act(const action::Start& a) {
    write("+" + id(a.child));
    REQUIRE_MESSAGE(!alive.contains(id(a.child)), "V1: a second ", id(a.child));
    REQUIRE_MESSAGE(in(ChildPhase::starting) == 1, "V2: started while another one starts");
    REQUIRE_MESSAGE(tree.stage != Stage::stopping, "V3: started while the children stop");
    if (refusals[id(a.child)] > 0) {
      --refusals[id(a.child)];
      return inbox_.push_back(event::StartFailed{a.child, "refused"});
    }
    alive.insert(id(a.child));
    inbox_.push_back(event::Started{a.child});
  }
  void act(const action::Stop& a) {
    write("-" + id(a.child));
    REQUIRE_MESSAGE(in(ChildPhase::stopping) == 1, "V3: two children stop at once");
    for (const std::string& other : alive)
      CHECK_MESSAGE(index(other) <= a.child, "V3: ", other, " outlives ", id(a.child));
    if (!stubborn.contains(id(a.child))) exits(a.child, ExitKind::shutdown);
  }
  void act(const action::Kill& a) {
    write("!" + id(a.child));
    exits(a.child, ExitKind::abnormal);
  }
  void exits(size_t child, ExitKind kind) {
    if (alive.erase(id(child)) == 1) inbox_.push_back(event::Exited{child, kind, "as asked"});
  }
  void act(const action::Arm& a) {
    if (tree.children[a.child].phase == ChildPhase::waiting) {
      int64_t full_ms = tree.limits.first_delay_ms;
      for (size_t n = failures_ms_[a.child].size(); n > 1 && full_ms < tree.limits.max_delay_ms;
           --n)
        full_ms *= 2;
      full_ms = std::min(full_ms, tree.limits.max_delay_ms);
      CHECK(a.delay_ms <= full_ms);
      CHECK(a.delay_ms >= full_ms / 2);
    } else {
      CHECK(a.delay_ms == kStop_ms);
    }
    timers_.insert({now_ms + a.delay_ms, a.child});
  }
  void act(const action::Terminate&) {
    write("end");
    REQUIRE_MESSAGE(alive.empty(), "V5: ended while children live");
    REQUIRE(!terminated);
    terminated = true;
  }
  void act(const action::Report& a) { reports.push_back(a); }

  std::deque<Event> inbox_;
  std::multimap<int64_t, size_t> timers_;               // child by time
  std::map<size_t, std::vector<int64_t>> failures_ms_;  // by child, since its last progress
  bool too_many_ = false;
};

}  // namespace simplescale::restart
