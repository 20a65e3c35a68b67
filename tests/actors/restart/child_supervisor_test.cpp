// child_supervisor() in virtual time, with workers that log when they start and end.
#include "actors/restart/child_supervisor.hpp"

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
#include <stdexcept>

using namespace simplescale;
using namespace simplescale::restart;

namespace {

struct TestConfig : caf::actor_system_config {
  TestConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// Actors run only in run().
class World {
 public:
  World()
      : system(config),
        scheduler(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())),
        self(system) {}
  ~World() {
    caf::anon_send_exit(supervisor, caf::exit_reason::kill);
    run();
  }

  TestConfig config;
  caf::actor_system system;
  caf::scheduler::test_coordinator& scheduler;
  caf::scoped_actor self;
  caf::actor supervisor;

  std::map<std::string, int> refusals;     // number of starts that will throw
  std::map<std::string, int> stillbirths;  // number of actors that will end as they start
  std::set<std::string> stubborn;          // ignore requests to exit
  std::map<std::string, caf::actor> last;  // the newest instance of each worker
  std::map<std::string, int> lives;        // number of living instances of each worker
  /// "+a" start, "-a" ended as asked, "!a" killed, "x:a" any other end; "end", "end:reason"
  std::string log;

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

  Child worker(const std::string& id, Restart restart = Restart::permanent) {
    return {{id, restart}, [this, id](caf::scheduled_actor* parent) { return start(id, parent); }};
  }
  /// Spawns the supervisor and runs until no message is left.
  void spawn(std::vector<Child> children, const RestartLimits& limits = {.max_restarts = 10}) {
    supervisor =
        system.spawn(child_supervisor, ChildSupervisorOptions{"test", limits, std::move(children)});
    supervisor->attach_functor([this](const caf::error& reason) {
      write(reason == caf::exit_reason::user_shutdown ? "end" : "end:" + system.render(reason));
    });
    run();
  }
  void spawn_two(const RestartLimits& limits = {.max_restarts = 10}) {
    spawn({worker("a"), worker("b")}, limits);
  }
  /// normal: the worker quits; shutdown: another actor asks it to exit; abnormal: an error.
  void dies(const std::string& id, ExitKind kind = ExitKind::abnormal) {
    if (kind == ExitKind::normal)
      self->send(last.at(id), caf::atom("quit"));
    else
      caf::anon_send_exit(last.at(id), kind == ExitKind::shutdown ? caf::exit_reason::user_shutdown
                                                                  : caf::exit_reason::unreachable);
    run();
  }
  void stop(caf::exit_reason reason = caf::exit_reason::user_shutdown) {
    self->send_exit(supervisor, reason);
    run();
  }

 private:
  void write(const std::string& word) { log += (log.empty() ? "" : " ") + word; }

  static caf::behavior work(caf::event_based_actor* me, World* world, const std::string& id) {
    if (world->stillbirths[id]-- > 0) {
      me->quit(caf::make_error(caf::sec::runtime_error, "at once"));
      return {};
    }
    me->set_exit_handler([=](caf::exit_msg& m) {
      if (m.reason && !world->stubborn.contains(id)) me->quit(m.reason);
    });
    return [=](caf::atom_value) { me->quit(); };
  }
  caf::actor start(const std::string& id, caf::scheduled_actor* parent) {
    write("+" + id);
    if (refusals[id]-- > 0) throw std::runtime_error("refused");
    const caf::actor child = parent->spawn(work, this, id);
    REQUIRE_MESSAGE(++lives[id] == 1, "V1: a second ", id);
    child->attach_functor([this, id](const caf::error& reason) {
      --lives[id];
      const bool asked = reason == caf::exit_reason::user_shutdown;
      write((asked ? "-" : reason == caf::exit_reason::kill ? "!" : "x:") + id);
    });
    last[id] = child;
    return child;
  }
};

}  // namespace

TEST_SUITE_BEGIN("restart: child supervisor");

TEST_CASE("child supervisor: starts in order, stops in reverse order with the given reason") {
  World world;
  world.spawn({world.worker("a"), world.worker("b"), world.worker("c")});
  CHECK(world.take_log() == "+a +b +c");
  SUBCASE("shutdown") {
    world.stop();
    CHECK(world.take_log() == "-c -b -a end");
  }
  SUBCASE("another one") {
    world.stop(caf::exit_reason::unreachable);
    CHECK(world.take_log().find("-c -b -a end:") == 0);
  }
}

TEST_CASE("child supervisor: kind and exit reason decide whether a child is restarted") {
  for (const auto restart : {Restart::permanent, Restart::transient}) {
    for (const auto kind : {ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal}) {
      INFO("restart = ", restart, ", to_string(kind) = ", to_string(kind));
      World world;
      world.spawn({world.worker("a", restart), world.worker("b")});
      world.dies("a", kind);
      const bool again = restart == Restart::permanent || kind == ExitKind::abnormal;
      CHECK(world.lives["a"] == (again ? 1 : 0));
      CHECK(world.lives["b"] == 1);
    }
  }
}

TEST_CASE("child supervisor: one restart too many in the window ends it with `shutdown`") {
  World world;
  world.spawn_two({.max_restarts = 2, .within_ms = 1000});
  world.take_log();
  world.dies("b");
  world.pass(600);
  world.dies("b");
  world.pass(401);  // the first leaves the window
  world.dies("b");
  CHECK(world.take_log() == "x:b +b x:b +b x:b +b");
  world.pass(500);
  world.dies("b");
  CHECK(world.take_log() == "x:b -a end");
}

TEST_CASE("child supervisor: the exit of the actor it is linked to stops all") {
  World world;
  world.spawn_two();
  const caf::actor parent = world.system.spawn(
      [](caf::event_based_actor* me, const caf::actor& child) -> caf::behavior {
        me->link_to(child);
        return [](int) {};
      },
      world.supervisor);
  world.run();
  world.take_log();
  caf::anon_send_exit(parent, caf::exit_reason::user_shutdown);
  world.run();
  CHECK(world.take_log() == "-b -a end");
}

TEST_CASE("child supervisor: a child that ignores the request to stop is killed at its deadline") {
  World world;
  world.stubborn = {"b"};
  world.spawn_two();
  world.take_log();
  world.stop();
  world.pass(kStop_ms - 1);
  CHECK(world.take_log() == "");
  world.pass(1);
  CHECK(world.take_log() == "!b -a end");
}

TEST_CASE("child supervisor: a start function that throws at first ends it") {
  for (const std::string id : {"a", "b"}) {
    World world;
    world.refusals[id] = 1;
    world.spawn_two();
    CHECK(world.take_log() == (id == "a" ? "+a end" : "+a +b -a end"));
  }
}

TEST_CASE("child supervisor: a failed restart is tried again within the budget") {
  World world;
  world.spawn_two({.max_restarts = 3});
  world.take_log();
  world.refusals["b"] = 2;
  world.dies("b");
  CHECK(world.take_log() == "x:b +b +b +b");
  world.pass(6000);
  world.refusals["b"] = 100;
  world.dies("b");
  CHECK(world.take_log() == "x:b +b +b +b -a end");
}

TEST_CASE("child supervisor: a child that ends as it starts has started, and is restarted") {
  World world;
  world.stillbirths["a"] = 2;
  world.spawn_two({.max_restarts = 2});
  CHECK(world.lives["a"] == 1);
  CHECK(world.lives["b"] == 1);
  world.dies("a");
  CHECK(world.lives["b"] == 0);
}

TEST_CASE("child supervisor: one that is killed kills its children") {
  World world;
  world.spawn_two();
  caf::anon_send_exit(world.supervisor, caf::exit_reason::kill);
  world.run();
  CHECK(world.lives["a"] + world.lives["b"] == 0);
}

TEST_CASE("child supervisor: delays follow the actor clock, progress of the child resets them") {
  World world;
  world.spawn_two({.max_restarts = 100, .first_delay_ms = 1000, .max_delay_ms = 4000});
  uint64_t draw = 0;
  const auto dies = [&](uint32_t attempts) {
    const int64_t wait_ms =
        restart_delay_ms({.first_delay_ms = 1000, .max_delay_ms = 4000}, attempts, draw++);
    world.take_log();
    world.dies("a");
    world.pass(wait_ms - 1);
    CHECK(world.take_log() == "x:a");
    world.pass(1);
    CHECK(world.take_log() == "+a");
  };
  for (const uint32_t attempts : {1, 2, 3, 4}) dies(attempts);
  world.self->send(world.supervisor, Progress{"b"});
  world.self->send(world.supervisor, Progress{"unknown"});
  dies(5);
  world.self->send(world.supervisor, Progress{"a"});
  dies(1);
}

TEST_CASE("child supervisor: unexpected messages and errors are dropped") {
  World world;
  world.spawn_two();
  world.take_log();
  world.self->send(world.supervisor, 42, std::string("what"));
  world.self->send(world.supervisor, caf::make_error(caf::sec::runtime_error));
  world.run();
  world.dies("a");
  CHECK(world.take_log() == "x:a +a");
}

TEST_CASE("child supervisor: works on its own threads in real time") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor self(system);
  const auto me = caf::actor_cast<caf::actor>(self);
  const auto echo = [](caf::event_based_actor*) -> caf::behavior {
    return [](int x) { return x + 1; };
  };
  ChildSupervisorOptions options;
  options.limits.max_restarts = 1;
  options.children = {{{.id = "echo"}, [=](caf::scheduled_actor* parent) {
                         const caf::actor child = parent->spawn(echo);
                         caf::anon_send(me, child);
                         return child;
                       }}};
  const auto top = system.spawn<caf::detached>(child_supervisor, options);
  const auto started = [&] {
    caf::actor child;
    self->receive([&](const caf::actor& actor) { child = actor; });
    return child;
  };
  const caf::actor first = started();
  caf::anon_send_exit(first, caf::exit_reason::kill);
  const caf::actor second = started();
  CHECK(second != first);
  self->request(second, caf::infinite, 7)
      .receive([](int x) { CHECK(x == 8); }, [](const caf::error&) { FAIL("dead"); });
  self->monitor(top);
  self->send_exit(top, caf::exit_reason::user_shutdown);
  self->receive([](const caf::down_msg& m) { CHECK(m.reason == caf::exit_reason::user_shutdown); });
}

TEST_SUITE_END();
