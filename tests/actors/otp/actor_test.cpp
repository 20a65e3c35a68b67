// supervisor_actor() in virtual time.
#include "actors/otp/supervisor_actor.hpp"
#include "tests/actors/otp/world.hpp"

using namespace simplescale;
using namespace simplescale::supervision;

TEST_SUITE_BEGIN("supervision: actor");

TEST_CASE("supervisor actor: starts in order, stops in reverse order with the given reason") {
  World world;
  const auto supervisor = world.spawn(world.options(
      Strategy::one_for_one, {world.worker("a"), world.worker("b"), world.worker("c")}));
  CHECK(world.take_log() == "+a +b +c");
  CHECK(world.count(ReportKind::ready) == 1);
  world.stop(supervisor);
  CHECK(world.take_log() == "-c -b -a end");
}

TEST_CASE("supervisor actor: each strategy restarts its own set") {
  const auto run = [](Strategy strategy, const std::string& victim) {
    World world;
    world.spawn(world.options(
        strategy,
        {world.worker("a", Restart::permanent, "x"), world.worker("b", Restart::permanent, "y"),
         world.worker("c", Restart::permanent, "x"), world.worker("d", Restart::permanent, "y")}));
    world.take_log();
    world.dies(victim);
    for (const char* id : {"a", "b", "c", "d"}) CHECK(world.lives[id] == 1);
    return world.take_log();
  };
  CHECK(run(Strategy::one_for_one, "b") == "x:b +b");
  CHECK(run(Strategy::one_for_all, "b") == "x:b -d -c -a +a +b +c +d");
  CHECK(run(Strategy::rest_for_one, "b") == "x:b -d -c +b +c +d");
  CHECK(run(Strategy::group_for_all, "a") == "x:a -c +a +c");
  CHECK(run(Strategy::group_for_all, "d") == "x:d -b +b +d");
}

TEST_CASE("supervisor actor: restart type and exit reason decide whether a child is restarted") {
  for (const auto restart : {Restart::permanent, Restart::transient, Restart::temporary}) {
    for (const auto kind : {ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal}) {
      CAPTURE(to_string(restart));
      CAPTURE(to_string(kind));
      World world;
      const auto supervisor =
          world.spawn(world.options(Strategy::one_for_one, {world.worker("a", restart)}));
      world.dies("a", kind);
      const bool again = restart == Restart::permanent ||
                         (restart == Restart::transient && kind == ExitKind::abnormal);
      CHECK(world.lives["a"] == (again ? 1 : 0));
      CHECK(world.ask<ChildCounts>(supervisor, CountChildren{}).specs ==
            (restart == Restart::temporary ? 0 : 1));
    }
  }
}

TEST_CASE(
    "supervisor actor: max_restarts in the window are allowed, one more ends it with `shutdown`") {
  World world;
  world.spawn(
      world.options(Strategy::one_for_one, {world.worker("a"), world.worker("b")}, 2, 1000));
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
  CHECK(world.count(ReportKind::escalated) == 1);
}

TEST_CASE("supervisor actor: escalation goes up two levels") {
  World world;
  const auto leaf = world.options(Strategy::one_for_one, {world.worker("w")}, 1);
  const auto middle =
      world.options(Strategy::one_for_one, {world.worker("m"), supervisor_child("leaf", leaf)}, 0);
  world.spawn(world.options(Strategy::one_for_one,
                            {world.worker("t"), supervisor_child("middle", middle)}, 1));
  CHECK(world.take_log() == "+t +m +w");
  world.dies("w");
  CHECK(world.take_log() == "x:w +w");  // leaf's budget
  world.dies("w");
  CHECK(world.take_log() ==
        "x:w -m +m +w");  // leaf gives up, middle has no budget and gives up, top restarts it
  world.dies("w");
  world.dies("w");
  CHECK(world.take_log() == "x:w +w x:w -m -t end");
  CHECK(world.count(ReportKind::escalated) == 5);
}

TEST_CASE("supervisor actor: its exit stops the whole tree in reverse order") {
  World world;
  const auto pool = world.options(Strategy::one_for_all, {world.worker("p"), world.worker("q")});
  const auto supervisor = world.spawn(
      world.options(Strategy::rest_for_one,
                    {world.worker("a"), supervisor_child("pool", pool), world.worker("z")}));
  CHECK(world.take_log() == "+a +p +q +z");
  world.stop(supervisor);
  CHECK(world.take_log() == "-z -q -p -a end");
}

TEST_CASE("supervisor actor: the exit of the actor it is linked to stops the tree") {
  World world;
  const auto supervisor =
      world.spawn(world.options(Strategy::one_for_one, {world.worker("a"), world.worker("b")}));
  const caf::actor parent = world.system.spawn(
      [](caf::event_based_actor* me, const caf::actor& child) -> caf::behavior {
        me->link_to(child);
        return [](int) {};
      },
      supervisor);
  world.run();
  world.take_log();
  caf::anon_send_exit(parent, caf::exit_reason::user_shutdown);
  world.run();
  CHECK(world.take_log() == "-b -a end");
}

TEST_CASE("supervisor actor: a child that ignores the request to stop is killed at its deadline") {
  World world;
  world.stubborn = {"b"};
  auto b = world.worker("b");
  b.spec.shutdown_ms = 300;
  const auto supervisor = world.spawn(world.options(Strategy::one_for_one, {world.worker("a"), b}));
  world.take_log();
  world.stop(supervisor);
  world.pass(299);
  CHECK(world.take_log() == "");
  world.pass(1);
  CHECK(world.take_log() == "!b -a end");
}

TEST_CASE(
    "supervisor actor: kBrutalKill kills at once; a restart waits for children that ignore exit") {
  World world;
  world.stubborn = {"b", "c"};
  auto b = world.worker("b");
  b.spec.shutdown_ms = kBrutalKill;
  world.spawn(world.options(Strategy::one_for_all, {world.worker("a"), b, world.worker("c")}));
  world.take_log();
  world.dies("a");
  CHECK(world.take_log() == "x:a");
  world.pass(5000);
  CHECK(world.take_log() == "!c !b +a +b +c");
}

TEST_CASE("supervisor actor: a child that fails its first start, by error or exception, ends it") {
  for (const bool throwing : {false, true}) {
    World world;
    (throwing ? world.throws : world.refusals)["b"] = 1;
    world.spawn(world.options(Strategy::one_for_one,
                              {world.worker("a"), world.worker("b"), world.worker("c")}));
    CHECK(world.take_log() == "+a +b -a end");
  }
  World first;
  first.refusals["a"] = 1;
  first.spawn(first.options(Strategy::one_for_one, {first.worker("a"), first.worker("b")}));
  CHECK(first.take_log() == "+a end");
}

TEST_CASE("supervisor actor: a failed restart is tried again within the budget") {
  World world;
  world.spawn(world.options(Strategy::one_for_one, {world.worker("a"), world.worker("b")}, 3));
  world.take_log();
  world.refusals["b"] = 1;
  world.throws["b"] = 1;
  world.dies("b");
  CHECK(world.take_log() == "x:b +b +b +b");
  world.pass(6000);
  world.refusals["b"] = 100;
  world.dies("b");
  CHECK(world.take_log() == "x:b +b +b +b -a end");
}

TEST_CASE(
    "supervisor actor: a child with reports_started holds back the next one until it has "
    "reported") {
  World world;
  world.spawn(world.options(Strategy::one_for_one,
                            {world.worker("a"), world.slow_worker("b"), world.worker("c")}));
  CHECK(world.take_log() == "+a +b");
  world.dies("a");  // the death is handled when all have started
  CHECK(world.take_log() == "x:a");
  world.reports_started("b");
  CHECK(world.take_log() == "+c +a");
}

TEST_CASE("supervisor actor: a child that never reports started is killed at its deadline") {
  World world;
  auto b = world.slow_worker("b");
  b.spec.start_timeout_ms = 100;
  world.spawn(world.options(Strategy::one_for_one, {world.worker("a"), b}));
  CHECK(world.take_log() == "+a +b");
  world.pass(100);
  CHECK(world.take_log() == "!b -a end");
}

TEST_CASE(
    "supervisor actor: a nested supervisor has started when its children have, and its failure is "
    "a failed start") {
  World world;
  const auto pool = world.options(Strategy::one_for_one, {world.slow_worker("p")});
  world.spawn(
      world.options(Strategy::one_for_one,
                    {world.worker("a"), supervisor_child("pool", pool), world.worker("z")}));
  CHECK(world.take_log() == "+a +p");
  world.reports_started("p");
  CHECK(world.take_log() == "+z");
  World failing;
  failing.refusals["p"] = 1;
  const auto refused = failing.options(Strategy::one_for_one, {failing.worker("p")});
  failing.spawn(failing.options(Strategy::one_for_one,
                                {failing.worker("a"), supervisor_child("pool", refused)}));
  CHECK(failing.take_log() == "+a +p -a end");
}

TEST_CASE("supervisor actor: a supervisor that is killed kills its children") {
  World world;
  const auto pool = world.options(Strategy::one_for_one, {world.worker("p")});
  const auto supervisor = world.spawn(
      world.options(Strategy::one_for_one, {world.worker("a"), supervisor_child("pool", pool)}));
  caf::anon_send_exit(supervisor, caf::exit_reason::kill);
  world.run();
  for (const char* id : {"a", "p"}) CHECK(world.lives[id] == 0);
}

TEST_CASE("supervisor actor: requests are answered as OTP answers them") {
  World world;
  const auto supervisor = world.spawn(world.options(Strategy::one_for_one, {world.worker("a")}));
  const auto started = world.ask<ChildAnswer>(supervisor, StartChild{world.worker("b")});
  CHECK(started.answer == Answer::ok);
  CHECK(started.child == world.last["b"]);
  CHECK(world.answer(supervisor, StartChild{world.worker("b")}) == Answer::already_started);
  CHECK(world.answer(supervisor, StartChild{Child{.spec = {.id = "n"}}}) == Answer::bad_spec);
  CHECK(world.answer(supervisor, RestartChild{"a"}) == Answer::running);
  CHECK(world.answer(supervisor, DeleteChild{"a"}) == Answer::running);
  CHECK(world.answer(supervisor, TerminateChild{"z"}) == Answer::not_found);
  CHECK(world.answer(supervisor, TerminateChild{"a"}) == Answer::ok);
  CHECK(world.lives["a"] == 0);
  const auto children = world.ask<std::vector<ChildHandle>>(supervisor, WhichChildren{});
  REQUIRE(children.size() == 2);
  CHECK(children[0].info.phase == Phase::stopped);
  CHECK(!children[0].actor);
  CHECK(children[1].actor == world.last["b"]);
  CHECK(world.ask<ChildCounts>(supervisor, CountChildren{}) ==
        ChildCounts{.specs = 2, .active = 1, .workers = 2});
  CHECK(world.answer(supervisor, RestartChild{"a"}) == Answer::ok);
  CHECK(world.answer(supervisor, TerminateChild{"a"}) == Answer::ok);
  CHECK(world.answer(supervisor, DeleteChild{"a"}) == Answer::ok);
  world.refusals["n"] = 1;
  const auto failed = world.ask<ChildAnswer>(supervisor, StartChild{world.worker("n")});
  CHECK(failed.answer == Answer::start_failed);
  CHECK(failed.why.find("refused") != std::string::npos);
  world.take_log();
  world.stop(supervisor);
  CHECK(world.take_log() == "-b end");
}

TEST_CASE(
    "supervisor actor: a child deleted and added again under its id runs the new start function") {
  World world;
  world.stubborn = {"a"};
  const auto supervisor = world.spawn(world.options(Strategy::one_for_one, {world.worker("a")}));
  world.take_log();
  auto other = world.worker("other");
  other.spec.id = "a";
  world.self->send(supervisor, TerminateChild{"a"});  // until the deadline; the others wait
  world.self->send(supervisor, DeleteChild{"a"});
  world.self->send(supervisor, StartChild{other});
  world.pass(5000);
  CHECK(world.take_log() == "!a +other");
  CHECK(world.lives["other"] == 1);
  for (int i = 0; i < 3; ++i)
    world.self->receive([](const ChildAnswer& answer) { CHECK(answer.answer == Answer::ok); });
}

TEST_CASE("supervisor actor: back-off follows the actor clock, progress resets it") {
  World world;
  auto options = world.options(
      Strategy::group_for_all,
      {world.worker("a", Restart::permanent, "g"), world.worker("b", Restart::permanent, "g")});
  options.spec.back_off = {.first_ms = 100, .factor = 2, .max_ms = 1000, .jitter = 0};
  const auto supervisor = world.spawn(options);
  for (const int64_t wait_ms : {100, 200, 400}) {
    world.take_log();
    world.dies("a");
    CHECK(world.take_log() == "x:a -b");
    world.pass(wait_ms - 1);
    CHECK(world.take_log() == "");
    world.pass(1);
    CHECK(world.take_log() == "+a +b");
  }
  world.self->send(supervisor, Progress{});
  world.run();
  world.dies("a");
  world.pass(100);
  CHECK(world.take_log() == "x:a -b +a +b");
}

TEST_CASE("supervisor actor: budgets given by the caller outlive it") {
  World world;
  auto options = world.options(Strategy::one_for_one, {world.worker("a")}, 1);
  options.budgets = std::make_shared<Budgets>();
  world.stop([&] {
    const auto supervisor = world.spawn(options);
    world.dies("a");
    return supervisor;
  }());
  world.take_log();
  world.spawn(options);
  world.dies("a");
  CHECK(world.take_log() == "+a x:a end");
  CHECK(options.budgets->at("a").attempts == 2);
}

TEST_CASE("supervisor actor: a child spawned with a link does not take the supervisor down") {
  World world;
  world.linked = {"a"};
  world.spawn(world.options(Strategy::one_for_one, {world.worker("a"), world.worker("b")}));
  world.take_log();
  world.dies("a");
  world.dies("a");
  CHECK(world.take_log() == "x:a +a x:a +a");
}

TEST_CASE("supervisor actor: unexpected messages and errors are dropped") {
  World world;
  const auto supervisor = world.spawn(world.options(Strategy::one_for_one, {world.worker("a")}));
  world.self->send(supervisor, 42, std::string("what"));
  world.self->send(supervisor, caf::make_error(caf::sec::runtime_error));
  world.self->send(supervisor, ChildStarted{});
  world.run();
  CHECK(world.ask<ChildCounts>(supervisor, CountChildren{}).active == 1);
}

TEST_CASE("supervisor actor: works on its own threads in real time") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor self(system);
  const auto me = caf::actor_cast<caf::actor>(self);
  const auto echo = [](caf::event_based_actor*, int add) -> caf::behavior {
    return [=](int x) { return x + add; };
  };
  const Observer tell_me = [me](const Report& report) {
    if (report.kind == ReportKind::started) caf::anon_send(me, report.child);
  };
  SupervisorOptions pool;
  pool.children = {{.spec = {.id = "echo"},
                    .start = [=](caf::scheduled_actor* parent) { return parent->spawn(echo, 1); }}};
  pool.observer = tell_me;
  SupervisorOptions options;
  options.children = {supervisor_child("pool", pool, Restart::permanent, Threading::detached)};
  options.observer = tell_me;
  const auto top = system.spawn<caf::detached>(supervisor_actor, options);
  const auto expect = [&](const std::string& id) {
    self->receive([&](const std::string& started) { CHECK(started == id); });
  };
  expect("echo");
  expect("pool");
  const auto children_of = [&](const caf::actor& supervisor) {
    std::vector<ChildHandle> children;
    self->request(supervisor, caf::infinite, WhichChildren{})
        .receive([&](std::vector<ChildHandle>& answer) { children = std::move(answer); },
                 [](const caf::error&) { FAIL("no answer"); });
    return children;
  };
  const caf::actor first = children_of(children_of(top).at(0).actor).at(0).actor;
  caf::anon_send_exit(first, caf::exit_reason::kill);
  expect("echo");
  const caf::actor second = children_of(children_of(top).at(0).actor).at(0).actor;
  CHECK(second != first);
  self->request(second, caf::infinite, 7)
      .receive([](int x) { CHECK(x == 8); }, [](const caf::error&) { FAIL("dead"); });
  self->monitor(top);
  self->send_exit(top, caf::exit_reason::user_shutdown);
  self->receive([](const caf::down_msg& m) { CHECK(m.reason == caf::exit_reason::user_shutdown); });
}

TEST_CASE("supervisor actor: reports have the time, the child and the reason") {
  World world;
  auto options = world.options(Strategy::one_for_one, {world.worker("n0")}, 3);
  options.name = "job";
  world.spawn(options);
  world.pass(250);
  world.reports.clear();
  world.dies("n0");
  REQUIRE(world.reports.size() == 3);  // exited, restarting, started
  const Report& report = world.reports[1];
  CHECK(report.kind == ReportKind::restarting);
  CHECK(report.at_ms >= 250);
  CHECK(report.supervisor == "job");
  CHECK(report.child == "n0");
  CHECK(report.why.find("n0 ended (abnormal exit: ") == 0);
  CHECK(report.why.find("restart 1 of at most 3 within 5000 ms") != std::string::npos);
}

TEST_SUITE_END();
