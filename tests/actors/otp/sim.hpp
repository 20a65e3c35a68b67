// A simulated supervisor around decide() in virtual time: children start, refuse to, hang and die
// as the test orders. Checks the invariants of decide.hpp on every action of every test.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/otp/decide.hpp"

namespace simplescale::supervision {

class Sim {
 public:
  Sim(SupervisorSpec spec, const std::vector<ChildSpec>& children, Budgets budgets = {})
      : state(make_state(std::move(spec), children, std::move(budgets))) {}

  // How children behave, by id.
  std::map<std::string, int> refusals;  // number of starts that will fail
  std::set<std::string> ignores;        // the start function chooses not to start
  std::set<std::string> slow;           // do not report started until reports_started()
  std::set<std::string> stubborn;       // ignore exit requests

  SupervisorState state;
  int64_t now_ms = 1000;
  std::map<std::string, uint64_t> alive;  // V1: one instance each
  std::map<uint64_t, Answer> answers;
  std::vector<action::Report> reports;
  std::vector<int64_t> restarts_ms;  // times of `restarting` reports
  std::vector<std::string> reasons;
  /// "+a" start, "-a" exit request, "!a" kill, "ready", "end"; cleared by take_log().
  std::string log;
  bool terminated = false;

  void begin() { feed(event::Begin{}); }
  void feed(Event event) {
    inbox_.push_back(std::move(event));
    drain();
  }
  void dies(const std::string& id, ExitKind kind = ExitKind::abnormal) {
    REQUIRE(alive.count(id) == 1);
    const uint64_t instance = alive[id];
    alive.erase(id);
    feed(event::Exited{id, instance, kind, "test"});
  }
  /// The child dies; the caller feeds the returned event to the supervisor later.
  event::Exited dies_unseen(const std::string& id, ExitKind kind = ExitKind::abnormal) {
    const uint64_t instance = alive.at(id);
    alive.erase(id);
    return {id, instance, kind, "test"};
  }
  void reports_started(const std::string& id) { feed(event::Started{id, alive.at(id)}); }
  Answer ask(const Event& request) {  // one of the four requests, with request = next_request()
    const uint64_t number = last_request_;
    feed(request);
    return answers.count(number) ? answers[number] : Answer::bad_spec;
  }
  uint64_t next_request() { return ++last_request_; }
  Answer start_child(ChildSpec spec) {
    return ask(event::StartChild{next_request(), std::move(spec)});
  }
  Answer terminate_child(const std::string& id) {
    return ask(event::TerminateChild{next_request(), id});
  }
  Answer restart_child(const std::string& id) {
    return ask(event::RestartChild{next_request(), id});
  }
  Answer delete_child(const std::string& id) { return ask(event::DeleteChild{next_request(), id}); }
  bool answered(uint64_t request) const { return answers.count(request) == 1; }

  /// Advances the time and fires the timers that are due.
  void pass(int64_t ms) {
    const int64_t until = now_ms + ms;
    while (!timers_.empty() && timers_.begin()->first <= until) {
      const auto [due, token] = *timers_.begin();
      timers_.erase(timers_.begin());
      now_ms = std::max(now_ms, due);
      feed(event::Timer{token});
    }
    now_ms = until;
  }
  int64_t next_timer_in_ms() const {
    return timers_.empty() ? -1 : timers_.begin()->first - now_ms;
  }

  std::string take_log() { return std::exchange(log, {}); }
  Phase phase(const std::string& id) const {
    for (const auto& info : which_children(state))
      if (info.id == id) return info.phase;
    FAIL("no child ", id);
    return Phase::stopped;
  }
  bool has(const std::string& id) const {
    for (const auto& info : which_children(state))
      if (info.id == id) return true;
    return false;
  }
  size_t count(ReportKind kind) const {
    size_t n = 0;
    for (const auto& report : reports) n += report.kind == kind;
    return n;
  }

 private:
  void drain() {
    while (!inbox_.empty()) {
      const Event event = std::move(inbox_.front());
      inbox_.pop_front();
      Decision decision = decide(now_ms, state, event);
      state = std::move(decision.state);
      REQUIRE(!decision.reason.empty());
      reasons.push_back(decision.reason);
      for (const auto& action : decision.actions)
        std::visit([this](const auto& a) { act(a); }, action);
    }
  }
  void write(const std::string& word) { log += (log.empty() ? "" : " ") + word; }

  size_t position(const std::string& id) const {
    for (size_t i = 0; i < state.children.size(); ++i)
      if (state.children[i].spec.id == id) return i;
    return state.children.size();
  }
  size_t in(std::initializer_list<Phase> phases) const {
    size_t n = 0;
    for (const auto& child : state.children)
      n += static_cast<size_t>(std::count(phases.begin(), phases.end(), child.phase));
    return n;
  }

  void act(const action::Start& a) {
    write("+" + a.id);
    REQUIRE_MESSAGE(alive.count(a.id) == 0, "V1: a second ", a.id);
    REQUIRE_MESSAGE(in({Phase::starting, Phase::stopping}) == 1,
                    "V2: started while another child starts or stops");
    REQUIRE(!terminated);
    if (refusals[a.id] > 0) {
      --refusals[a.id];
      inbox_.push_back(event::StartFailed{a.id, a.instance, "refused"});
    } else if (ignores.count(a.id)) {
      inbox_.push_back(event::Ignored{a.id, a.instance});
    } else {
      alive[a.id] = a.instance;
      if (!slow.count(a.id)) inbox_.push_back(event::Started{a.id, a.instance});
    }
  }
  void act(const action::Stop& a) {
    write("-" + a.id);
    REQUIRE_MESSAGE(in({Phase::stopping}) == 1, "V3: two children stop at once");
    if (state.operation.kind == Operation::Kind::shutdown)  // V3: no later child lives
      for (const auto& [other, _] : alive)
        CHECK_MESSAGE(position(other) <= position(a.id), "V3: ", other, " outlives ", a.id);
    if (alive.count(a.id) && alive[a.id] == a.instance && !stubborn.count(a.id)) {
      alive.erase(a.id);
      inbox_.push_back(event::Exited{a.id, a.instance, ExitKind::shutdown, "as asked"});
    }
  }
  void act(const action::Kill& a) {
    write("!" + a.id);
    if (alive.count(a.id) && alive[a.id] == a.instance) {
      alive.erase(a.id);
      inbox_.push_back(event::Exited{a.id, a.instance, ExitKind::abnormal, "killed"});
    }
  }
  void act(const action::Arm& a) {
    REQUIRE(a.delay_ms >= 0);
    timers_.insert({now_ms + a.delay_ms, a.token});
  }
  void act(const action::Reply& a) {
    REQUIRE_MESSAGE(answers.count(a.request) == 0, "V5: answered twice");
    answers[a.request] = a.answer;
  }
  void act(const action::Ready&) { write("ready"); }
  void act(const action::Terminate&) {
    write("end");
    REQUIRE_MESSAGE(alive.empty(), "V6: terminated while children live");
    REQUIRE(!terminated);
    terminated = true;
  }
  void act(const action::Report& a) {
    if (a.kind == ReportKind::restarting) restarts_ms.push_back(now_ms);
    reports.push_back(a);
  }

  std::deque<Event> inbox_;
  std::multimap<int64_t, uint64_t> timers_;
  uint64_t last_request_ = 0;
};

inline ChildSpec child(const std::string& id, Restart restart = Restart::permanent,
                       const std::string& group = {}) {
  ChildSpec spec;
  spec.id = id;
  spec.restart = restart;
  spec.group = group;
  return spec;
}

inline SupervisorSpec supervisor(Strategy strategy, uint32_t max_restarts = 10,
                                 int64_t within_ms = 5000) {
  SupervisorSpec spec;
  spec.strategy = strategy;
  spec.intensity.max_restarts = max_restarts;
  spec.intensity.within_ms = within_ms;
  return spec;
}

}  // namespace simplescale::supervision
