// decide() against the documented behaviour of OTP's `supervisor`, case by case.
#include "actors/otp/decide.hpp"
#include "tests/actors/otp/sim.hpp"

using namespace simplescale;
using namespace simplescale::supervision;

TEST_SUITE_BEGIN("supervision: decide");

TEST_CASE("supervisor: V3: children start in order and stop in reverse") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b"), child("c")});
  sim.begin();
  CHECK(sim.take_log() == "+a +b +c ready");
  sim.feed(event::Stop{"test"});
  CHECK(sim.take_log() == "-c -b -a end");
}

TEST_CASE("supervisor: V2: a child starts only when the one before it has reported started") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.slow = {"a"};
  sim.begin();
  CHECK(sim.take_log() == "+a");
  sim.reports_started("a");
  CHECK(sim.take_log() == "+b ready");
}

TEST_CASE("supervisor: restart type and exit kind decide whether a child is restarted") {
  struct Row {
    Restart restart;
    ExitKind exit;
    bool restarted;
    bool kept;
  };
  const Row rows[] = {{Restart::permanent, ExitKind::normal, true, true},
                      {Restart::permanent, ExitKind::shutdown, true, true},
                      {Restart::permanent, ExitKind::abnormal, true, true},
                      {Restart::transient, ExitKind::normal, false, true},
                      {Restart::transient, ExitKind::shutdown, false, true},
                      {Restart::transient, ExitKind::abnormal, true, true},
                      {Restart::temporary, ExitKind::normal, false, false},
                      {Restart::temporary, ExitKind::shutdown, false, false},
                      {Restart::temporary, ExitKind::abnormal, false, false}};
  for (const auto strategy : {Strategy::one_for_one, Strategy::one_for_all, Strategy::rest_for_one,
                              Strategy::group_for_all}) {
    for (const Row& row : rows) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(row.restart));
      CAPTURE(to_string(row.exit));
      Sim sim(supervisor(strategy), {child("a", row.restart)});
      sim.begin();
      sim.take_log();
      sim.dies("a", row.exit);
      CHECK(sim.take_log() == (row.restarted ? "+a" : ""));
      CHECK(sim.has("a") == row.kept);
      if (row.kept) CHECK(sim.phase("a") == (row.restarted ? Phase::running : Phase::stopped));
      CHECK(sim.state.budgets.size() == (row.restarted ? 1 : 0));
    }
  }
}

TEST_CASE("supervisor: each strategy restarts its own set, stopped in reverse, started in order") {
  const auto run = [](Strategy strategy, const std::string& victim) {
    Sim sim(supervisor(strategy),
            {child("a", Restart::permanent, "x"), child("b", Restart::permanent, "y"),
             child("c", Restart::permanent, "x"), child("d", Restart::permanent, "y"),
             child("e", Restart::permanent, "x"), child("f")});
    sim.begin();
    sim.take_log();
    sim.dies(victim);
    CHECK(sim.restarts_ms.size() == 1);
    CHECK(sim.alive.size() == 6);
    return sim.take_log();
  };
  CHECK(run(Strategy::one_for_one, "c") == "+c");
  CHECK(run(Strategy::one_for_all, "c") == "-f -e -d -b -a +a +b +c +d +e +f");
  CHECK(run(Strategy::one_for_all, "a") == "-f -e -d -c -b +a +b +c +d +e +f");
  CHECK(run(Strategy::rest_for_one, "c") == "-f -e -d +c +d +e +f");
  CHECK(run(Strategy::rest_for_one, "a") == "-f -e -d -c -b +a +b +c +d +e +f");
  CHECK(run(Strategy::rest_for_one, "f") == "+f");
  CHECK(run(Strategy::group_for_all, "c") == "-e -a +a +c +e");
  CHECK(run(Strategy::group_for_all, "a") == "-e -c +a +c +e");
  CHECK(run(Strategy::group_for_all, "d") == "-b +b +d");
  CHECK(run(Strategy::group_for_all, "f") == "+f");
}

TEST_CASE("supervisor: temporary siblings stopped for a restart are removed, not restarted") {
  for (const auto strategy :
       {Strategy::one_for_all, Strategy::rest_for_one, Strategy::group_for_all}) {
    Sim sim(supervisor(strategy),
            {child("a", Restart::permanent, "g"), child("t", Restart::temporary, "g"),
             child("b", Restart::permanent, "g")});
    sim.begin();
    sim.take_log();
    sim.dies("a");
    CHECK(sim.take_log() == "-b -t +a +b");
    CHECK(!sim.has("t"));
  }
}

TEST_CASE(
    "supervisor: one_for_all starts a transient sibling again that had ended normally, as OTP "
    "does") {
  Sim sim(supervisor(Strategy::one_for_all), {child("a"), child("t", Restart::transient)});
  sim.begin();
  sim.dies("t", ExitKind::normal);
  CHECK(sim.phase("t") == Phase::stopped);
  sim.take_log();
  sim.dies("a");
  CHECK(sim.take_log() == "+a +t");
}

TEST_CASE("supervisor: V4: max_restarts restarts are allowed, one more ends the supervisor") {
  for (const uint32_t max : {0u, 1u, 3u}) {
    Sim sim(supervisor(Strategy::one_for_one, max), {child("a"), child("b"), child("c")});
    sim.begin();
    sim.take_log();
    for (uint32_t i = 0; i < max; ++i) {
      sim.dies("b");
      CHECK(sim.take_log() == "+b");
    }
    sim.dies("b");
    CHECK(sim.take_log() == "-c -a end");
    CHECK(sim.count(ReportKind::escalated) == 1);
  }
}

TEST_CASE("supervisor: restarts count for all children together, or per child if configured") {
  auto spec = supervisor(Strategy::one_for_one, 1);
  Sim together(spec, {child("a"), child("b")});
  together.begin();
  together.dies("a");
  together.dies("b");
  CHECK(together.terminated);
  spec.intensity.scope = Intensity::Scope::child;
  Sim alone(spec, {child("a"), child("b")});
  alone.begin();
  alone.dies("a");
  alone.dies("b");
  CHECK(!alone.terminated);
  alone.dies("a");
  CHECK(alone.terminated);
}

TEST_CASE("supervisor: the window slides; a restart exactly within_ms ago still counts") {
  for (const int64_t gap_ms : {5000, 5001}) {
    Sim sim(supervisor(Strategy::one_for_one, 2, 5000), {child("a")});
    sim.begin();
    sim.dies("a");  // at t
    sim.pass(3000);
    sim.dies("a");  // t + 3000
    sim.pass(gap_ms - 3000);
    sim.dies("a");  // t + gap
    CHECK(sim.terminated == (gap_ms == 5000));
    if (sim.terminated) continue;
    sim.pass(3000);  // the second has left the window, the third has not
    sim.dies("a");
    CHECK(!sim.terminated);
    sim.dies("a");
    CHECK(sim.terminated);
  }
}

TEST_CASE("supervisor: within_ms = kForever counts the restarts since the last progress") {
  Sim sim(supervisor(Strategy::one_for_one, 2, kForever), {child("a")});
  sim.begin();
  for (int i = 0; i < 5; ++i) {
    sim.pass(int64_t{1} << 40);
    sim.dies("a");
    sim.pass(int64_t{1} << 40);
    sim.dies("a");
    CHECK(!sim.terminated);
    sim.feed(event::Progress{{"a"}});
  }
  for (int i = 0; i < 3; ++i) sim.dies("a");
  CHECK(sim.terminated);
}

TEST_CASE("supervisor: progress resets the restarts of the named children, uptime does not") {
  auto spec = supervisor(Strategy::one_for_one, 1, kForever);
  spec.intensity.scope = Intensity::Scope::child;
  Sim sim(spec, {child("a"), child("b")});
  sim.begin();
  sim.dies("a");
  sim.dies("b");
  sim.feed(event::Progress{{"a"}});
  sim.dies("a");
  CHECK(!sim.terminated);
  sim.pass(1'000'000'000);
  sim.dies("b");
  CHECK(sim.terminated);
}

TEST_CASE("supervisor: budgets are kept per id and can outlive the supervisor") {
  Sim first(supervisor(Strategy::one_for_one, 2), {child("a")});
  first.begin();
  first.dies("a");
  first.dies("a");
  first.feed(event::Stop{"test"});
  Sim kept(supervisor(Strategy::one_for_one, 2), {child("x"), child("a")}, first.state.budgets);
  kept.begin();
  kept.dies("a");
  CHECK(kept.terminated);
  Sim fresh(supervisor(Strategy::one_for_one, 2), {child("x"), child("a")});
  fresh.begin();
  fresh.dies("a");
  CHECK(!fresh.terminated);
}

TEST_CASE(
    "supervisor: a child that fails its first start ends the supervisor; the other children stop "
    "in "
    "reverse") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b"), child("c"), child("d")});
  sim.refusals["c"] = 1;
  sim.begin();
  CHECK(sim.take_log() == "+a +b +c -b -a end");
  CHECK(sim.restarts_ms.empty());
}

TEST_CASE("supervisor: a child that dies before it reports started has failed to start") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.slow = {"b"};
  sim.begin();
  sim.dies("b", ExitKind::normal);
  CHECK(sim.take_log() == "+a +b -a end");
}

TEST_CASE("supervisor: V4: a restart that fails is tried again and counts as another restart") {
  Sim sim(supervisor(Strategy::one_for_one, 3), {child("a"), child("b")});
  sim.begin();
  sim.take_log();
  sim.refusals["b"] = 2;
  sim.dies("b");
  CHECK(sim.take_log() == "+b +b +b");
  CHECK(sim.restarts_ms.size() == 3);
  sim.refusals["b"] = 100;
  sim.pass(5001);
  sim.dies("b");
  CHECK(sim.take_log() == "+b +b +b -a end");
}

TEST_CASE("supervisor: one_for_all with a failing restart stops and starts all again") {
  Sim sim(supervisor(Strategy::one_for_all, 3), {child("a"), child("b"), child("c")});
  sim.begin();
  sim.take_log();
  sim.refusals["b"] = 1;
  sim.dies("c");
  CHECK(sim.take_log() == "-b -a +a +b -a +a +b +c");
}

TEST_CASE("supervisor: rest_for_one with a failing restart continues from the child that failed") {
  Sim sim(supervisor(Strategy::rest_for_one, 3), {child("a"), child("b"), child("c"), child("d")});
  sim.begin();
  sim.take_log();
  sim.refusals["c"] = 1;
  sim.dies("b");
  CHECK(sim.take_log() == "-d -c +b +c +c +d");
}

TEST_CASE("supervisor: group_for_all with a failing restart tries only its group again") {
  Sim sim(supervisor(Strategy::group_for_all, 3),
          {child("a", Restart::permanent, "x"), child("b", Restart::permanent, "y"),
           child("c", Restart::permanent, "x"), child("d", Restart::permanent, "x")});
  sim.begin();
  sim.take_log();
  sim.refusals["c"] = 1;
  sim.dies("d");
  CHECK(sim.take_log() == "-c -a +a +c -a +a +c +d");
}

TEST_CASE("supervisor: the death of a child while the next one starts is handled after the start") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b"), child("c")});
  sim.slow = {"b"};
  sim.begin();
  sim.dies("a");
  CHECK(sim.take_log() == "+a +b");
  sim.slow.clear();
  sim.reports_started("b");
  CHECK(sim.take_log() == "+c ready +a");
}

TEST_CASE("supervisor: a child that died before its turn to stop is not stopped again") {
  Sim sim(supervisor(Strategy::one_for_all), {child("a"), child("b"), child("c")});
  sim.stubborn = {"c"};
  sim.begin();
  sim.take_log();
  sim.dies("a");
  CHECK(sim.take_log() == "-c");
  sim.dies("b");
  sim.dies("c", ExitKind::shutdown);
  CHECK(sim.take_log() == "+a +b +c");
  CHECK(sim.restarts_ms.size() == 1);
}

TEST_CASE("supervisor: V1: two deaths at once restart each child once") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.begin();
  sim.take_log();
  const auto a = sim.dies_unseen("a");
  const auto b = sim.dies_unseen("b");
  sim.feed(a);
  sim.feed(b);
  sim.feed(a);
  sim.feed(b);
  CHECK(sim.take_log() == "+a +b");
}

TEST_CASE("supervisor: a child that does not stop within its deadline is killed") {
  auto slow = child("a");
  slow.shutdown_ms = 700;
  Sim sim(supervisor(Strategy::one_for_one), {child("x"), slow, child("b")});
  sim.stubborn = {"a"};
  sim.begin();
  sim.take_log();
  sim.feed(event::Stop{"test"});
  CHECK(sim.take_log() == "-b -a");
  sim.pass(699);
  CHECK(sim.take_log() == "");
  sim.pass(1);
  CHECK(sim.take_log() == "!a -x end");
}

TEST_CASE("supervisor: kBrutalKill kills at once, kForever waits forever, zero asks and kills") {
  auto brutal = child("a");
  brutal.shutdown_ms = kBrutalKill;
  auto patient = child("b");
  patient.shutdown_ms = kForever;
  auto zero = child("c");
  zero.shutdown_ms = 0;
  Sim sim(supervisor(Strategy::one_for_one), {brutal, patient, zero});
  sim.stubborn = {"b", "c"};
  sim.begin();
  sim.take_log();
  sim.feed(event::Stop{"test"});
  CHECK(sim.take_log() == "-c");
  sim.pass(0);
  CHECK(sim.take_log() == "!c -b");
  sim.pass(int64_t{1} << 40);
  CHECK(sim.take_log() == "");
  sim.dies("b", ExitKind::normal);
  CHECK(sim.take_log() == "!a end");
  CHECK(sim.count(ReportKind::shutdown_error) ==
        1);  // a permanent child should end with `shutdown`
}

TEST_CASE("supervisor: a start that takes too long is killed and has failed") {
  auto late = child("b");
  late.start_timeout_ms = 300;
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), late});
  sim.begin();
  sim.take_log();
  sim.slow = {"b"};
  sim.dies("b");
  sim.pass(299);
  CHECK(sim.take_log() == "+b");
  sim.slow.clear();
  sim.pass(1);
  CHECK(sim.take_log() == "!b +b");
  CHECK(sim.restarts_ms.size() == 2);
  sim.pass(1000);
  CHECK(sim.take_log() == "");
}

TEST_CASE("supervisor: a request to stop ends a start in progress") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b"), child("c")});
  sim.slow = {"b"};
  sim.begin();
  sim.feed(event::Stop{"test"});
  CHECK(sim.take_log() == "+a +b -b -a end");
}

TEST_CASE(
    "supervisor: V3: a start that ends while another child is being stopped keeps the order") {
  for (const bool fails : {false, true}) {
    Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b"), child("c")});
    sim.begin();
    sim.slow = {"b"};
    sim.stubborn = {"c"};
    sim.dies("b");
    sim.take_log();
    sim.feed(event::Stop{"test"});
    if (fails)
      sim.dies("b");
    else
      sim.reports_started("b");
    CHECK(sim.take_log() == "-c");
    sim.pass(5000);
    CHECK(sim.take_log() == (fails ? "!c -a end" : "!c -b -a end"));
  }
}

TEST_CASE("supervisor: a request to stop during a restart stops all children in reverse") {
  Sim sim(supervisor(Strategy::rest_for_one), {child("a"), child("b"), child("c"), child("d")});
  sim.stubborn = {"c"};
  sim.begin();
  sim.take_log();
  sim.dies("b");
  CHECK(sim.take_log() == "-d -c");
  sim.feed(event::Stop{"test"});
  sim.feed(event::Stop{"again"});
  CHECK(sim.take_log() == "");
  sim.pass(5000);
  CHECK(sim.take_log() == "!c -a end");
}

TEST_CASE("supervisor: requests are answered as OTP answers them") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b", Restart::transient)});
  sim.begin();
  CHECK(sim.start_child(child("a")) == Answer::already_started);
  CHECK(sim.restart_child("a") == Answer::running);
  CHECK(sim.delete_child("a") == Answer::running);
  CHECK(sim.restart_child("z") == Answer::not_found);
  CHECK(sim.delete_child("z") == Answer::not_found);
  CHECK(sim.terminate_child("z") == Answer::not_found);
  CHECK(sim.start_child(child("")) == Answer::bad_spec);
  sim.dies("b", ExitKind::normal);
  CHECK(sim.start_child(child("b")) == Answer::already_present);
  CHECK(sim.restart_child("b") == Answer::ok);
  CHECK(sim.phase("b") == Phase::running);
  sim.take_log();
  CHECK(sim.terminate_child("b") == Answer::ok);
  CHECK(sim.terminate_child("b") == Answer::ok);
  CHECK(sim.take_log() == "-b");
  CHECK(sim.delete_child("b") == Answer::ok);
  CHECK(!sim.has("b"));
  CHECK(sim.start_child(child("b")) == Answer::ok);
  CHECK(sim.start_child(child("t", Restart::temporary)) == Answer::ok);
  CHECK(sim.terminate_child("t") == Answer::ok);
  CHECK(!sim.has("t"));
  sim.refusals["n"] = 1;
  CHECK(sim.start_child(child("n")) == Answer::start_failed);
  CHECK(!sim.has("n"));
  CHECK(sim.restarts_ms.empty());  // none of this is a restart
  sim.feed(event::Stop{"test"});
  CHECK(sim.start_child(child("n")) == Answer::stopping);
}

TEST_CASE("supervisor: a failed restart_child leaves the child stopped") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a")});
  sim.begin();
  sim.terminate_child("a");
  sim.refusals["a"] = 1;
  CHECK(sim.restart_child("a") == Answer::start_failed);
  CHECK(sim.phase("a") == Phase::stopped);
  CHECK(sim.restart_child("a") == Answer::ok);
}

TEST_CASE(
    "supervisor: a child that chooses not to start stays specified, a temporary one does not") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.ignores = {"a", "t"};
  sim.begin();
  CHECK(sim.take_log() == "+a +b ready");
  CHECK(sim.phase("a") == Phase::stopped);
  CHECK(sim.start_child(child("t", Restart::temporary)) == Answer::ok);
  CHECK(!sim.has("t"));
}

TEST_CASE(
    "supervisor: a child about to be restarted is neither deleted nor restarted by hand, but can "
    "be terminated") {
  auto spec = supervisor(Strategy::one_for_one);
  spec.back_off = {.first_ms = 100, .jitter = 0};
  Sim sim(spec, {child("a"), child("b")});
  sim.begin();
  sim.take_log();
  sim.dies("a");
  CHECK(sim.phase("a") == Phase::restarting);
  CHECK(sim.restart_child("a") == Answer::restarting);
  CHECK(sim.delete_child("a") == Answer::restarting);
  CHECK(sim.start_child(child("a")) == Answer::already_present);
  CHECK(sim.terminate_child("a") == Answer::ok);
  sim.pass(1000);
  CHECK(sim.take_log() == "");
  CHECK(sim.phase("a") == Phase::stopped);
}

TEST_CASE("supervisor: requests wait for the operation in progress, in order") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.stubborn = {"a"};
  sim.begin();
  sim.take_log();
  const uint64_t first = sim.next_request();
  sim.feed(event::TerminateChild{first, "a"});
  const uint64_t second = sim.next_request();
  sim.feed(event::RestartChild{second, "a"});
  CHECK(!sim.answered(first));
  sim.pass(5000);
  CHECK(sim.take_log() == "-a !a +a");
  CHECK(sim.answers[first] == Answer::ok);
  CHECK(sim.answers[second] == Answer::ok);
}

TEST_CASE("supervisor: V5: stopping answers every request that waits") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), child("b")});
  sim.stubborn = {"a"};
  sim.begin();
  for (int i = 0; i < 3; ++i) sim.feed(event::TerminateChild{sim.next_request(), "a"});
  sim.feed(event::Stop{"test"});
  for (uint64_t request = 1; request <= 3; ++request)
    CHECK(sim.answers[request] == Answer::stopping);
  sim.pass(5000);
  CHECK(sim.terminated);
}

TEST_CASE("supervisor: counts and lists its children") {
  auto tree = child("tree");
  tree.is_supervisor = true;
  Sim sim(supervisor(Strategy::one_for_one), {child("a"), tree, child("t", Restart::transient)});
  sim.begin();
  sim.dies("t", ExitKind::normal);
  CHECK(count_children(sim.state) ==
        ChildCounts{.specs = 3, .active = 2, .supervisors = 1, .workers = 2});
  const auto list = which_children(sim.state);
  REQUIRE(list.size() == 3);
  CHECK(list[1].id == "tree");
  CHECK(list[2].phase == Phase::stopped);
}

TEST_CASE(
    "supervisor: automatic shutdown when any or all significant children have ended by "
    "themselves") {
  const auto significant = [](const std::string& id, Restart restart) {
    auto spec = child(id, restart);
    spec.significant = true;
    return spec;
  };
  auto spec = supervisor(Strategy::one_for_one);
  const std::vector<ChildSpec> children = {child("a"), significant("t", Restart::transient),
                                           significant("u", Restart::temporary),
                                           child("b", Restart::temporary)};
  spec.auto_shutdown = AutoShutdown::any_significant;
  Sim any(spec, children);
  any.begin();
  any.dies("b");                      // not significant
  any.dies("t", ExitKind::abnormal);  // restarted
  any.terminate_child("u");           // not by itself
  CHECK(!any.terminated);
  any.dies("t", ExitKind::normal);
  CHECK(any.terminated);
  spec.auto_shutdown = AutoShutdown::all_significant;
  Sim all(spec, children);
  all.begin();
  all.dies("t", ExitKind::shutdown);
  CHECK(!all.terminated);
  all.take_log();
  all.dies("u", ExitKind::abnormal);
  CHECK(all.take_log() == "-b -a end");
}

TEST_CASE("supervisor: back-off delays the starts, not the stops") {
  auto spec = supervisor(Strategy::group_for_all);
  spec.back_off = {.first_ms = 100, .jitter = 0};
  Sim sim(spec,
          {child("a", Restart::permanent, "g"), child("b", Restart::permanent, "g"), child("o")});
  sim.begin();
  sim.take_log();
  sim.dies("a");
  CHECK(sim.take_log() == "-b");
  CHECK(sim.phase("b") == Phase::restarting);
  CHECK(sim.phase("o") == Phase::running);
  sim.pass(99);
  CHECK(sim.take_log() == "");
  sim.pass(1);
  CHECK(sim.take_log() == "+a +b");
}

TEST_CASE(
    "supervisor: back-off grows with each restart of a child to its limit, progress resets it") {
  auto spec = supervisor(Strategy::one_for_one, 100);
  spec.back_off = {.first_ms = 100, .factor = 2, .max_ms = 500, .jitter = 0};
  Sim sim(spec, {child("a"), child("b")});
  sim.begin();
  for (const int64_t expected : {100, 200, 400, 500, 500}) {
    sim.dies("a");
    CHECK(sim.next_timer_in_ms() == expected);
    sim.pass(expected);
    CHECK(sim.phase("a") == Phase::running);
  }
  sim.dies("b");
  CHECK(sim.next_timer_in_ms() == 100);
  sim.pass(100);
  sim.feed(event::Progress{});
  sim.dies("a");
  CHECK(sim.next_timer_in_ms() == 100);
}

TEST_CASE(
    "supervisor: jitter shortens a delay by at most its part; it depends on seed and counter "
    "only") {
  const BackOff back_off{.first_ms = 1000, .factor = 1, .max_ms = 1000, .jitter = 0.5, .seed = 7};
  int64_t low = 1000, high = 0;
  for (uint64_t draw = 0; draw < 1000; ++draw) {
    const int64_t delay_ms = back_off_ms(back_off, 1, draw);
    CHECK(delay_ms == back_off_ms(back_off, 1, draw));
    low = std::min(low, delay_ms);
    high = std::max(high, delay_ms);
  }
  CHECK(low >= 500);
  CHECK(low < 510);
  CHECK(high <= 1000);
  CHECK(high > 990);
}

TEST_CASE(
    "supervisor: a restart of a larger set waits for the longest back-off in it and replaces the "
    "smaller one") {
  auto spec = supervisor(Strategy::rest_for_one);
  spec.back_off = {.first_ms = 100, .factor = 10, .max_ms = 1000, .jitter = 0};
  Sim sim(spec, {child("a"), child("b")});
  sim.begin();
  sim.dies("b");
  sim.pass(100);
  sim.dies("b");  // its second: 1000 ms
  sim.pass(100);
  sim.take_log();
  sim.dies("a");  // its first: 100 ms
  sim.pass(899);
  CHECK(sim.take_log() == "");
  sim.pass(1);
  CHECK(sim.take_log() == "+a +b");
  sim.pass(5000);
  CHECK(sim.take_log() == "");
}

TEST_CASE("supervisor: events about past lives, unknown children and stale timers are ignored") {
  Sim sim(supervisor(Strategy::one_for_one), {child("a")});
  sim.begin();
  sim.dies("a");
  const auto before = sim.state;
  sim.feed(event::Exited{"a", 1, ExitKind::abnormal, "late"});
  sim.feed(event::Exited{"z", 1, ExitKind::abnormal, "unknown"});
  sim.feed(event::Started{"a", 1});
  sim.feed(event::Started{"a", 2});
  sim.feed(event::StartFailed{"a", 2, "late"});
  sim.feed(event::Timer{0});
  sim.feed(event::Timer{99});
  sim.feed(event::Retry{"a"});
  sim.feed(event::Begin{});
  CHECK(sim.state == before);
}

TEST_CASE("supervisor: a specification that OTP refuses is refused") {
  const SupervisorSpec spec = supervisor(Strategy::one_for_one);
  CHECK(validate(spec, {child("a"), child("b")}).ok());
  CHECK(!validate(spec, {child("a"), child("a")}).ok());
  CHECK(!validate(spec, {child("")}).ok());
  auto bad = child("a");
  bad.shutdown_ms = -2;
  CHECK(!validate(spec, {bad}).ok());
  bad = child("a");
  bad.significant = true;
  CHECK(!validate(spec, {bad}).ok());
  auto any = spec;
  any.auto_shutdown = AutoShutdown::any_significant;
  CHECK(!validate(any, {bad}).ok());
  bad.restart = Restart::transient;
  CHECK(validate(any, {bad}).ok());
  CHECK(!validate(spec, {bad}).ok());
  CHECK(!validate(supervisor(Strategy::one_for_one, 1, 0), {}).ok());
  auto endless = spec;
  endless.back_off.max_ms = kForever;
  CHECK(!validate(endless, {}).ok());
  endless = spec;
  endless.back_off.jitter = 1.5;
  CHECK(!validate(endless, {}).ok());
}

TEST_CASE("supervisor: the reason names the child, the count, the limit and what is done") {
  Sim sim(supervisor(Strategy::rest_for_one, 3, 5000), {child("n0"), child("n1")});
  sim.begin();
  sim.dies("n0");
  const std::string& why =
      sim.reports[sim.reports.size() - 1 - 3].why;  // before stopped n1, started n0, started n1
  CHECK(why ==
        "n0 ended (abnormal exit: test); restart 1 of at most 3 within 5000 ms: rest_for_one "
        "restarts n0, n1");
}

TEST_SUITE_END();
