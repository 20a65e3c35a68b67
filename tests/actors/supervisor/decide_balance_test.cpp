// BALANCE-1: when leaves go where they are computed faster, and when they come back.
#include "actors/supervisor/decision/balance.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {
namespace {

constexpr int64_t kLater = 100'000;  // after the pause

/// A job on so many nodes, one group each, with 16 leaves for each trainer.
State job_on(int nodes) {
  State s = training(nodes, 1);
  s.balance = true;
  s.leaves = 32 * static_cast<uint64_t>(nodes);
  return s;
}

/// n1 takes `slowness` times as long as the other nodes.
Decision measured(State& s, double slowness, std::set<std::string> stragglers, int64_t now = 0) {
  SpeedsMeasured e{s.generation, {}, std::move(stragglers)};
  for (const auto& domain : s.layout.domains)
    for (const std::string& node : domain)
      e.micro_batch_us[node] = node == "n1" ? static_cast<uint32_t>(1'000 * slowness) : 1'000;
  return decide(now, s, e);
}

/// All trainers have left after a step, and the next generation has begun and made a step.
Decision next_generation(State& s, int64_t now = 0) {
  Decision joined;
  const uint64_t step = s.committed_step + 1;
  decide(now, s, StepCommitted{s.generation, step});
  std::map<std::string, uint32_t> shard;
  for (const Place& p : places(s.rules, s.layout)) shard[p.trainer] = p.shard;
  for (const auto& [name, trainer] : State(s).trainers)
    if (trainer.state == TrainerState::training)
      joined = decide(now, s,
                      TrainerIdle{name, s.generation, of(shard[name], made(s.generation, {step}))});
  REQUIRE(all<Join>(joined).size() == 1);
  decide(now, s, StepCommitted{s.generation, step + 1});
  REQUIRE(s.phase == Phase::training);
  return joined;
}

std::string shares_event(const Decision& d) {
  for (const Record& r : all<Record>(d))
    if (r.kind == "shares") return r.reason.text;
  return "";
}

}  // namespace

TEST_CASE("job: BALANCE-1: a straggler's micro-batches go to faster groups, and come back") {
  State s = job_on(8);
  const Decision left = measured(s, 1 / 0.6, {"n1"});
  CHECK(only<Leave>(left).reason == "n1 is slow: with other shares a step takes 36 % less time");
  CHECK(left.reason == only<Leave>(left).reason);
  CHECK(s.weights.empty());  // the generation goes on with even shares
  CHECK(shares_event(next_generation(s)) ==
        "n1 at 0.60 of the fastest speed: of 256 micro-batches of a step group g1 has 20, others "
        "have up to 34");
  CHECK(s.weights == std::vector<uint32_t>{1000, 600, 1000, 1000, 1000, 1000, 1000, 1000});
  // It is measured again, and nothing is to gain.
  CHECK(measured(s, 1 / 0.6, {"n1"}, kLater).actions.empty());
  CHECK(measured(s, 1 / 0.55, {"n1"}, kLater).actions.empty());
  // Still a straggler, or fast for too short a time.
  CHECK(measured(s, 1, {"n1"}, kLater).actions.empty());
  CHECK(measured(s, 1, {}, s.balance_after_ms - 1).actions.empty());
  CHECK(only<Leave>(measured(s, 1, {}, kLater)).reason ==
        "no node is slow any more: the shares are even again");
  CHECK(shares_event(next_generation(s, kLater)) ==
        "even again: shares by speed would not gain enough");
  CHECK(s.weights.empty());
  CHECK(measured(s, 1, {}, 2 * kLater).actions.empty());
}

TEST_CASE("job: BALANCE-1: a generation does not end for other shares without a good reason") {
  State s = job_on(4);
  CHECK(measured(s, 1 / 0.6, {}).actions.empty());      // slow, but not for long
  CHECK(measured(s, 1 / 0.6, {"n2"}).actions.empty());  // another one is
  CHECK(measured(s, 1.05, {"n1"}).actions.empty());     // too little to gain
  SpeedsMeasured stale{s.generation - 1, {{"n1", 9'000}}, {"n1"}};
  CHECK(decide(0, s, stale).actions.empty());  // GEN-1
  CHECK(s.nodes.at("n1").micro_batch_us == 1'050);
  State even = job_on(4);
  even.balance = false;
  CHECK(measured(even, 5, {"n1"}).actions.empty());
  State one_leaf = job_on(4);
  one_leaf.leaves = 8;  // each trainer has one, which it cannot give away
  CHECK(measured(one_leaf, 5, {"n1"}).actions.empty());
  State stopping = job_on(4);
  decide(0, stopping, StopRequested{Code::ok, "by a user"});
  CHECK(all<Leave>(measured(stopping, 5, {"n1"})).empty());
  State soon = job_on(4);
  soon.balance_after_ms = 10;
  CHECK(measured(soon, 5, {"n1"}, 9).actions.empty());
  CHECK(all<Leave>(measured(soon, 5, {"n1"}, 10)).size() == 1);
  CHECK(soon.balance_after_ms == 10 + soon.balance_pause_ms);
}

TEST_CASE("job: BALANCE-1: a generation that begins anyway has shares by what is known") {
  State s = job_on(4);
  measured(s, 2, {});  // no straggler: the generation goes on
  REQUIRE(s.weights.empty());
  decide(0, s, TrainerDown{"n2.0", {"killed"}});
  const Decision next = all_idle(s, Steps{3});
  CHECK(all<Join>(next).empty());
  CHECK(shares_event(back(s, "n2.0", 0, Steps{})).starts_with("n1 at 0.50"));
  CHECK(s.weights == std::vector<uint32_t>{1000, 500, 1000, 1000});
  // The slow node is lost, and a spare that nobody has measured takes its place.
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(s.nodes.at("n1").micro_batch_us == 0);
  CHECK(shares_event(all_idle(s, Steps{4})).starts_with("even again"));
  CHECK(s.weights.empty());
  REQUIRE(s.layout.contains("n4"));
}

TEST_CASE("job: BALANCE-1: a group is as fast as its slowest node") {
  State s = training(2, 0, 2);  // g0: n0, n1; g1: n2, n3
  s.balance = true;
  s.leaves = 64;
  measured(s, 3, {"n1"});
  CHECK(weights_by_speed(s) == std::vector<uint32_t>{333, 1000});
  s.nodes.at("n2").micro_batch_us = 0;  // not known: as the others
  CHECK(weights_by_speed(s) == std::vector<uint32_t>{333, 1000});
  for (auto& [name, node] : s.nodes) node.micro_batch_us = 0;
  CHECK(weights_by_speed(s).empty());
}

}  // namespace simplescale::job::test
