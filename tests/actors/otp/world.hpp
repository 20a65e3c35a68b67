// An actor system in virtual time with workers that log when they start and end. Actors run only in
// World::run().
#pragma once

#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/otp/supervisor_actor.hpp"

namespace simplescale::supervision {

struct TestConfig : caf::actor_system_config {
  TestConfig() { set("scheduler.policy", caf::atom("testing")); }
};

class World {
 public:
  World()
      : system(config),
        scheduler(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())),
        self(system) {}
  ~World() {
    for (const auto& supervisor : supervisors_)
      caf::anon_send_exit(supervisor, caf::exit_reason::kill);
    run();
  }

  TestConfig config;
  caf::actor_system system;
  caf::scheduler::test_coordinator& scheduler;
  caf::scoped_actor self;

  std::map<std::string, int> refusals;  // number of starts that will return an error
  std::map<std::string, int> throws;    // number of starts that will throw
  std::set<std::string> stubborn;       // ignore exit requests
  std::set<std::string> linked;         // spawned with a link to the supervisor, against the rules
  std::map<std::string, caf::actor> last;  // the newest instance of each worker
  std::map<std::string, int> lives;        // number of living instances of each worker
  std::vector<Report> reports;
  std::string log;  // "+a" started, "-a" ended as asked, "!a" killed, "x:a" any other end

  void run() {
    while (scheduler.try_run_once()) {
    }
  }
  void pass(int64_t ms) {
    run();
    scheduler.advance_time(std::chrono::milliseconds(ms));
    run();
  }
  std::string take_log() { return std::exchange(log, {}); }
  void write(const std::string& word) { log += (log.empty() ? "" : " ") + word; }

  Child worker(const std::string& id, Restart restart = Restart::permanent,
               const std::string& group = {}) {
    Child child;
    child.spec.id = id;
    child.spec.restart = restart;
    child.spec.group = group;
    child.start = [this, id](caf::scheduled_actor* parent) { return start(id, parent); };
    return child;
  }
  Child slow_worker(const std::string& id) {  // has started after reports_started()
    Child child = worker(id);
    child.spec.reports_started = true;
    return child;
  }

  Observer observer() {
    return [this](const Report& report) { reports.push_back(report); };
  }
  SupervisorOptions options(Strategy strategy, std::vector<Child> children,
                            uint32_t max_restarts = 10, int64_t within_ms = 5000) {
    SupervisorOptions options;
    options.spec.strategy = strategy;
    options.spec.intensity.max_restarts = max_restarts;
    options.spec.intensity.within_ms = within_ms;
    options.children = std::move(children);
    options.observer = observer();
    return options;
  }
  /// Spawns a supervisor and runs until no message is left. Its end is logged: "end" or
  /// "end:reason".
  caf::actor spawn(SupervisorOptions options) {
    const caf::actor supervisor = system.spawn(supervisor_actor, std::move(options));
    supervisors_.push_back(supervisor);
    supervisor->attach_functor([this](const caf::error& reason) {
      write(reason == caf::exit_reason::user_shutdown ? "end" : "end:" + system.render(reason));
    });
    run();
    return supervisor;
  }

  /// A worker ends: normal: it quits; shutdown: another actor asks it to exit; abnormal: an error.
  void dies(const std::string& id, ExitKind kind = ExitKind::abnormal) {
    if (kind == ExitKind::normal)
      self->send(last.at(id), caf::atom("quit"));
    else
      caf::anon_send_exit(last.at(id), kind == ExitKind::shutdown ? caf::exit_reason::user_shutdown
                                                                  : caf::exit_reason::unreachable);
    run();
  }
  void reports_started(const std::string& id) {
    self->send(last.at(id), caf::atom("go"));
    run();
  }
  void stop(const caf::actor& supervisor) {
    self->send_exit(supervisor, caf::exit_reason::user_shutdown);
    run();
  }
  template <class Reply, class Request>
  Reply ask(const caf::actor& supervisor, Request request) {
    auto handle = self->request(supervisor, caf::infinite, std::move(request));
    run();
    Reply reply{};
    handle.receive([&](Reply& value) { reply = std::move(value); },
                   [&](const caf::error& error) { FAIL("no answer: ", system.render(error)); });
    return reply;
  }
  template <class Request>
  Answer answer(const caf::actor& supervisor, Request request) {
    return ask<ChildAnswer>(supervisor, std::move(request)).answer;
  }
  size_t count(ReportKind kind) const {
    size_t n = 0;
    for (const auto& report : reports) n += report.kind == kind;
    return n;
  }

 private:
  static caf::behavior work(caf::event_based_actor* me, const World* world, std::string id,
                            caf::actor parent) {
    me->set_exit_handler([=](caf::exit_msg& m) {
      if (m.reason && !world->stubborn.count(id)) me->quit(m.reason);
    });
    return [=](caf::atom_value what) {
      if (what == caf::atom("quit")) me->quit();
      if (what == caf::atom("go")) me->send(parent, ChildStarted{});
    };
  }
  caf::expected<caf::actor> start(const std::string& id, caf::scheduled_actor* parent) {
    write("+" + id);
    if (throws[id]-- > 0) throw std::runtime_error("thrown");
    if (refusals[id]-- > 0) return caf::make_error(caf::sec::runtime_error, "refused");
    const auto up = caf::actor_cast<caf::actor>(parent);
    const caf::actor child =
        linked.count(id) ? parent->spawn<caf::linked>(work, static_cast<const World*>(this), id, up)
                         : parent->spawn(work, static_cast<const World*>(this), id, up);
    REQUIRE_MESSAGE(++lives[id] == 1, "V1: a second ", id);
    child->attach_functor([this, id](const caf::error& reason) {
      --lives[id];
      const bool asked = reason == caf::exit_reason::user_shutdown;
      write((asked ? "-" : reason == caf::exit_reason::kill ? "!" : "x:") + id);
    });
    last[id] = child;
    return child;
  }

  std::vector<caf::actor> supervisors_;
};

}  // namespace simplescale::supervision
