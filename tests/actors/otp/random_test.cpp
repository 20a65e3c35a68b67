// Thousands of random supervisors and event sequences. Sim checks V1, V2, V3, V5 and V6 on every
// action. This file checks V4 (no window has more than max_restarts restarts) and that every
// supervisor ends with all requests answered. SIMPLESCALE_TEST_SEED=N repeats the one of seed N.
#include <cstdlib>
#include <random>

#include "tests/actors/otp/sim.hpp"

using namespace simplescale;
using namespace simplescale::supervision;

namespace {

class RandomHistory {
 public:
  explicit RandomHistory(uint64_t seed) : random_(seed) {}

  void run() {
    const SupervisorSpec spec = random_spec();
    std::vector<ChildSpec> children;
    for (int i = pick(6); i >= 0; --i) children.push_back(random_child());
    Sim sim(spec, children);
    sim.begin();
    for (int step = 0; step < 120 && !sim.terminated; ++step) {
      do_random_event(sim);
      check_window(sim, spec);
    }
    // In any state, a supervisor that is asked to stop ends after its deadlines.
    sim.slow.clear();
    if (!sim.terminated) sim.feed(event::Stop{"the end"});
    for (int i = 0; i < 100 && !sim.terminated; ++i) sim.pass(1000);
    REQUIRE(sim.terminated);
    for (const uint64_t request : requests_)
      REQUIRE_MESSAGE(sim.answered(request), "V5: request ", request);
    for (const auto& child : sim.state.children) REQUIRE(child.phase == Phase::stopped);
    const auto before = sim.state;
    sim.pass(int64_t{1} << 40);
    REQUIRE(sim.state == before);
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + pick(static_cast<int>(values.size())));
  }

  SupervisorSpec random_spec() {
    SupervisorSpec spec;
    spec.strategy = one_of({Strategy::one_for_one, Strategy::one_for_all, Strategy::rest_for_one,
                            Strategy::group_for_all});
    spec.intensity.max_restarts = static_cast<uint32_t>(pick(6));
    spec.intensity.within_ms = one_of<int64_t>({1, 50, 1000});
    if (pick(2) == 0)
      spec.back_off = {.first_ms = pick(40), .max_ms = 100, .jitter = 0.5, .seed = random_()};
    spec.auto_shutdown =
        one_of({AutoShutdown::never, AutoShutdown::any_significant, AutoShutdown::all_significant});
    auto_shutdown_ = spec.auto_shutdown != AutoShutdown::never;
    return spec;
  }
  ChildSpec random_child() {
    ChildSpec child;
    child.id = "c" + std::to_string(ids_++);
    child.restart =
        one_of({Restart::permanent, Restart::permanent, Restart::transient, Restart::temporary});
    child.group = one_of<std::string>({"", "x", "y"});
    child.shutdown_ms = one_of<int64_t>({kBrutalKill, 0, 10, 100});
    child.start_timeout_ms = one_of<int64_t>({20, 200});
    child.significant = auto_shutdown_ && child.restart != Restart::permanent && pick(4) == 0;
    return child;
  }
  std::string any_id() { return "c" + std::to_string(pick(ids_ + 1)); }

  void do_random_event(Sim& sim) {
    const std::string id = any_id();
    const auto toggle = [&](std::set<std::string>& set) {
      if (set.erase(id) == 0 && pick(3) == 0) set.insert(id);
    };
    switch (pick(12)) {
      case 0:
        toggle(sim.slow);
        break;
      case 1:
        toggle(sim.stubborn);
        break;
      case 2:
        sim.refusals[id] = pick(3);
        break;
      case 3:
        if (pick(4) == 0) toggle(sim.ignores);
        break;
      case 4:
        ask(sim, event::StartChild{sim.next_request(), pick(2) == 0 ? random_child() : named(id)});
        break;
      case 5:
        ask(sim, event::TerminateChild{sim.next_request(), id});
        break;
      case 6:
        ask(sim, event::RestartChild{sim.next_request(), id});
        break;
      case 7:
        ask(sim, event::DeleteChild{sim.next_request(), id});
        break;
      case 8:
        sim.pass(pick(60));
        break;
      case 9:
        if (sim.alive.count(id)) sim.feed(event::Started{id, sim.alive[id]});
        break;
      default:
        if (sim.alive.count(id))
          sim.dies(id, one_of({ExitKind::normal, ExitKind::shutdown, ExitKind::abnormal}));
    }
  }
  ChildSpec named(const std::string& id) {
    ChildSpec child = random_child();
    child.id = id;
    return child;
  }
  template <class E>
  void ask(Sim& sim, const E& event) {
    requests_.push_back(event.request);
    sim.feed(event);
  }

  static void check_window(const Sim& sim, const SupervisorSpec& spec) {
    const size_t max = spec.intensity.max_restarts;
    const auto& times = sim.restarts_ms;
    if (times.size() > max) {
      const int64_t span_ms = times.back() - times[times.size() - 1 - max];
      REQUIRE_MESSAGE(span_ms > spec.intensity.within_ms, "V4: ", max + 1, " restarts within ",
                      span_ms, " ms");
    }
  }

  std::mt19937_64 random_;
  int ids_ = 0;
  bool auto_shutdown_ = false;
  std::vector<uint64_t> requests_;
};

}  // namespace

TEST_CASE("supervisor: V1 to V6 hold for random event sequences") {
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

TEST_CASE("supervisor: the same state and event give the same decision") {
  Sim sim(supervisor(Strategy::one_for_all), {child("a"), child("b")});
  sim.begin();
  const Event event = event::Exited{"a", sim.alive["a"], ExitKind::abnormal, "test"};
  const Decision one = decide(sim.now_ms, sim.state, event);
  const Decision two = decide(sim.now_ms, sim.state, event);
  CHECK(one.state == two.state);
  CHECK(one.reason == two.reason);
  CHECK(one.actions.size() == two.actions.size());
}
