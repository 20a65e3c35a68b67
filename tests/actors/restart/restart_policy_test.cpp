// react(), case by case and in random histories. SIMPLESCALE_TEST_SEED=N repeats the history of
// seed N.
#include "actors/restart/restart_policy.hpp"

#include <cstdlib>
#include <random>

#include "tests/actors/restart/sim.hpp"

using namespace simplescale;
using namespace simplescale::restart;

TEST_SUITE_BEGIN("restart: policy");

namespace {

constexpr RestartLimits kMany = {.max_restarts = 10};
const std::vector<ChildSpec> kTwo = {{"a"}, {"b"}};
const std::vector<ChildSpec> kThree = {{"a"}, {"b"}, {"c"}};

}  // namespace

TEST_CASE("restart: V2, V3: children start in order and stop in reverse") {
  Sim sim(kMany, kThree);
  sim.begin();
  CHECK(sim.take_log() == "+a +b +c");
  sim.stop();
  CHECK(sim.take_log() == "-c -b -a end");
}

TEST_CASE("restart: the child's kind and its exit decide whether it is restarted, alone") {
  for (const auto kind : {Restart::permanent, Restart::transient}) {
    for (const auto exit : {ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal}) {
      INFO("kind = ", kind, ", to_string(exit) = ", to_string(exit));
      Sim sim(kMany, {{"a"}, {"b", kind}, {"c"}});
      sim.begin();
      sim.take_log();
      sim.dies("b", exit);
      const bool again = kind == Restart::permanent || exit == ExitKind::abnormal;
      CHECK(sim.take_log() == (again ? "+b" : ""));
      sim.stop();
      CHECK(sim.take_log() == (again ? "-c -b -a end" : "-c -a end"));
    }
  }
}

TEST_CASE("restart: V4: max_restarts of a child are allowed, one more stops all") {
  for (const uint32_t max : {0u, 1u, 3u}) {
    Sim sim({.max_restarts = max}, kThree);
    sim.begin();
    for (uint32_t i = 0; i < max; ++i) {
      sim.dies("b");
      sim.dies("c");
    }
    CHECK(!sim.terminated);
    sim.take_log();
    sim.dies("b");
    CHECK(sim.take_log() == "-c -a end");
    CHECK(sim.warnings("gives up") == 1);
  }
}

TEST_CASE("restart: the window slides; a restart exactly within_ms ago still counts") {
  for (const int64_t gap_ms : {5000, 5001}) {
    Sim sim({.max_restarts = 2, .within_ms = 5000}, {{"a"}});
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

TEST_CASE("restart: progress of a child forgets its restarts, and no other child's") {
  Sim sim({.max_restarts = 1}, kTwo);
  sim.begin();
  sim.dies("a");
  sim.dies("b");
  sim.progress("a");
  sim.dies("a");
  CHECK(!sim.terminated);
  sim.dies("b");
  CHECK(sim.terminated);
}

TEST_CASE("restart: V2: a child that fails its first start stops all") {
  Sim sim(kMany, {{"a"}, {"b"}, {"c"}, {"d"}});
  sim.refusals["c"] = 1;
  sim.begin();
  CHECK(sim.take_log() == "+a +b +c -b -a end");
  CHECK(sim.warnings("failed to start c: refused") == 1);
}

TEST_CASE("restart: V4: a restart that fails is tried again and counts as another restart") {
  Sim sim({.max_restarts = 3}, kTwo);
  sim.begin();
  sim.take_log();
  sim.refusals["b"] = 2;
  sim.dies("b");
  CHECK(sim.take_log() == "+b +b +b");
  sim.refusals["b"] = 100;
  sim.pass(5001);
  sim.dies("b");
  CHECK(sim.take_log() == "+b +b +b -a end");
}

TEST_CASE("restart: V3: a child that does not stop within its deadline is killed") {
  Sim sim(kMany, kThree);
  sim.stubborn = {"b"};
  sim.begin();
  sim.take_log();
  sim.stop();
  sim.stop();
  CHECK(sim.take_log() == "-c -b");
  sim.pass(kStop_ms - 1);
  CHECK(sim.take_log() == "");
  sim.pass(1);
  CHECK(sim.take_log() == "!b -a end");
  CHECK(sim.warnings("b did not stop within 5000 ms: killed") == 1);
  CHECK(sim.warnings("b stopped") == 0);
}

TEST_CASE("restart: a child that ends before its turn to stop is neither restarted nor stopped") {
  Sim sim(kMany, kThree);
  sim.stubborn = {"c"};
  sim.begin();
  sim.take_log();
  sim.stop();
  sim.dies("b");
  CHECK(sim.take_log() == "-c");
  sim.dies("c", ExitKind::shutdown);
  CHECK(sim.take_log() == "-a end");
  sim.pass(kStop_ms);  // the deadlines mean nothing any more
  CHECK(sim.take_log() == "");
}

TEST_CASE("restart: a permanent child that was asked to exit should end with `shutdown`") {
  for (const auto kind : {Restart::permanent, Restart::transient}) {
    for (const auto exit : {ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal}) {
      Sim sim(kMany, {{"a", kind}});
      sim.stubborn = {"a"};
      sim.begin();
      sim.stop();
      sim.dies("a", exit);
      const bool expected =
          exit == ExitKind::shutdown || (exit == ExitKind::normal && kind == Restart::transient);
      CHECK(sim.warnings("a stopped") == (expected ? 0 : 1));
      CHECK(sim.terminated);
    }
  }
}

TEST_CASE("restart: a stop cancels the restarts that wait for their delay") {
  Sim sim({.max_restarts = 10, .first_delay_ms = 100}, kTwo);
  sim.begin();
  sim.dies("b");
  CHECK(sim.phase("b") == ChildPhase::waiting);
  sim.stubborn = {"a"};
  sim.take_log();
  sim.stop();
  sim.pass(100);
  CHECK(sim.take_log() == "-a");
  sim.pass(kStop_ms);
  CHECK(sim.take_log() == "!a end");
}

TEST_CASE(
    "restart: the delay grows with each restart of a child to its limit, progress resets it") {
  Sim sim({.max_restarts = 100, .first_delay_ms = 1000, .max_delay_ms = 5000}, kTwo);
  sim.begin();
  const auto dies = [&](const std::string& id, int64_t full_ms) {  // the part that is random: half
    sim.dies(id);
    const int64_t delay_ms = sim.next_timer_in_ms();
    CHECK(delay_ms > full_ms / 2);
    CHECK(delay_ms <= full_ms);
    sim.take_log();
    sim.pass(delay_ms - 1);
    CHECK(sim.take_log() == "");
    sim.pass(1);
    CHECK(sim.take_log() == "+" + id);
  };
  for (const int64_t full_ms : {1000, 2000, 4000, 5000, 5000}) dies("a", full_ms);
  dies("b", 1000);
  sim.progress("a");
  dies("a", 1000);
  dies("b", 2000);
}

TEST_CASE("restart: the random part of a delay covers its half, and depends on the draw only") {
  const RestartLimits limits{.first_delay_ms = 1000};
  int64_t low = 1000, high = 0;
  for (uint64_t draw = 0; draw < 1000; ++draw) {
    const int64_t delay_ms = restart_delay_ms(limits, 1, draw);
    CHECK(delay_ms == restart_delay_ms(limits, 1, draw));
    low = std::min(low, delay_ms);
    high = std::max(high, delay_ms);
  }
  CHECK(low >= 500);
  CHECK(low < 510);
  CHECK(high <= 1000);
  CHECK(high > 990);
  CHECK(restart_delay_ms(limits, 10'000, 0) >= limits.max_delay_ms / 2);
  CHECK(restart_delay_ms(kMany, 3, 0) == 0);
}

TEST_CASE("restart: each restart takes another random number") {
  Sim sim({.max_restarts = 10, .first_delay_ms = 1'000'000, .max_delay_ms = 1'000'000}, kThree);
  sim.begin();
  std::set<int64_t> delays_ms;
  for (const char* id : {"a", "b", "c"}) {
    sim.dies(id);
    delays_ms.insert(sim.next_timer_in_ms());
    sim.pass(1'000'000);
  }
  CHECK(delays_ms.size() == 3);
}

TEST_CASE("restart: a report names the child, the count, the limit and what is done") {
  Sim sim({.max_restarts = 3}, kTwo);
  sim.begin();
  sim.dies("b");
  REQUIRE(sim.reports.size() >= 2);
  CHECK(sim.reports[sim.reports.size() - 2].text ==  // before "b started"
        "b ended (abnormal exit: test); restart 1 of at most 3 within 5000 ms: restarts b");
}

// ------------------------------------------------------------------ random histories

namespace {

class RandomHistory {
 public:
  explicit RandomHistory(uint64_t seed) : random_(seed) {}

  void run() {
    RestartLimits limits{.max_restarts = static_cast<uint32_t>(pick(6)),
                         .within_ms = one_of<int64_t>({1, 50, 1000}),
                         .first_delay_ms = one_of<int64_t>({0, pick(40)}),
                         .max_delay_ms = 100};
    std::vector<ChildSpec> children;
    for (int i = pick(6); i >= 0; --i)
      children.push_back(
          {"c" + std::to_string(i), one_of({Restart::permanent, Restart::transient})});
    Sim sim(limits, children);
    for (const ChildSpec& child : children)
      if (pick(20) == 0) sim.refusals[child.id] = 1;
    sim.begin();
    std::set<std::string> finished;
    const int stop_at = pick(240);
    for (int step = 0; step < 120 && !sim.terminated; ++step) {
      if (step == stop_at) sim.stop();
      do_random_event(sim, children[static_cast<size_t>(pick(static_cast<int>(children.size())))],
                      finished);
    }
    sim.refusals.clear();
    sim.pass(limits.max_delay_ms);
    if (sim.tree.stage == TreeState::Stage::running)
      for (const ChildSpec& child : children)
        REQUIRE(sim.alive.contains(child.id) != finished.contains(child.id));
    // A supervisor that is asked to stop ends after its deadlines.
    sim.stop();
    sim.pass(static_cast<int64_t>(children.size()) * kStop_ms);
    REQUIRE(sim.terminated);
    for (const ChildState& child : sim.tree.children) REQUIRE(child.phase == ChildPhase::stopped);
    sim.take_log();
    sim.pass(int64_t{1} << 40);
    REQUIRE(sim.take_log() == "");
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + pick(static_cast<int>(values.size())));
  }

  /// finished: the transient children that have ended without an error.
  void do_random_event(Sim& sim, const ChildSpec& child, std::set<std::string>& finished) {
    switch (pick(8)) {
      case 0:
        if (sim.stubborn.erase(child.id) == 0) sim.stubborn.insert(child.id);
        return;
      case 1:
        sim.refusals[child.id] = pick(3);
        return;
      case 2:
        return sim.progress(child.id);
      case 3:
      case 4:
        return sim.pass(one_of<int64_t>({pick(60), 1000}));
      default: {
        if (!sim.alive.contains(child.id)) return;
        const auto kind = one_of({ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal});
        if (child.restart == Restart::transient && kind != ExitKind::abnormal)
          finished.insert(child.id);
        sim.dies(child.id, kind);
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("restart: V1 to V5 hold for random histories, and all that should live live") {
  const char* given = std::getenv("SIMPLESCALE_TEST_SEED");
  const uint64_t first =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  const uint64_t last = given != nullptr ? first : first + 2999;
  MESSAGE("seeds from ", first);
  for (uint64_t seed = first; seed <= last; ++seed) {
    CAPTURE(seed);
    RandomHistory(seed).run();
  }
}

TEST_SUITE_END();
