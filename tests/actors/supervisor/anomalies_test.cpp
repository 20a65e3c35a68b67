// Stragglers and loss spikes are reported once, and only where there are some.
#include "actors/supervisor/anomalies.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace simplescale;

namespace {
std::vector<Anomaly> run(Anomalies& a, int steps, double slow_ms, double loss = 4) {
  std::vector<Anomaly> all;
  for (int i = 0; i < steps; ++i)
    for (const Anomaly& x : a.step(static_cast<uint64_t>(i), loss + 0.01 * (i % 3), 1,
                                   {{"n0.0", 100}, {"n0.1", 105}, {"n1.0", slow_ms}}))
      all.push_back(x);
  return all;
}
}  // namespace

TEST_CASE("anomalies: a straggler is reported once, and its end once") {
  Anomalies a;
  CHECK(run(a, 100, 120).empty());
  const auto slow = run(a, 100, 400);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].kind == "straggler");
  CHECK(slow[0].subject == "n1.0");
  const auto over = run(a, 100, 100);
  REQUIRE(over.size() == 1);
  CHECK(over[0].kind == "straggler_over");
}

TEST_CASE("anomalies: single slow steps do not make a straggler") {
  Anomalies a;
  for (int i = 0; i < 200; ++i)
    CHECK(a.step(static_cast<uint64_t>(i), 4, 1, {{"a", 100}, {"b", i % 10 == 0 ? 250.0 : 100.0}})
              .empty());
}

TEST_CASE("anomalies: every 20 steps the time of a micro-batch on each node is known") {
  Anomalies a;
  run(a, 19, 400);
  CHECK(a.take_speeds().empty());
  CHECK(a.stragglers().empty());
  run(a, 1, 9'000);  // one step is no measure
  using Speeds = std::map<std::string, uint32_t>;
  CHECK(a.take_speeds() == Speeds{{"n0", 105'000}, {"n1", 400'000}});
  CHECK(a.stragglers() == std::set<std::string>{"n1"});
  CHECK(a.take_speeds().empty());
  run(a, 10, 400);
  a.reset();  // a generation begins
  run(a, 19, 100);
  CHECK(a.take_speeds().empty());
  run(a, 1, 100);
  CHECK(a.take_speeds() == Speeds{{"n0", 105'000}, {"n1", 100'000}});
  CHECK(a.stragglers().empty());
}

TEST_CASE("anomalies: a jump of the loss is reported, but not in the first steps") {
  Anomalies a;
  CHECK(run(a, 100, 100).empty());
  const auto spike = a.step(100, 9, 1, {});
  REQUIRE(spike.size() == 1);
  CHECK(spike[0].kind == "loss_spike");
  // A step without targets says so, and does not count in the mean.
  const auto none = a.step(101, std::nan(""), 0, {});
  REQUIRE(none.size() == 1);
  CHECK(none[0].kind == "no_targets");
  CHECK(a.step(102, 4.02, 1, {}).empty());
  CHECK(a.step(103, std::nan(""), std::nan(""), {}).empty());  // no trainer could report it
  CHECK(a.step(104, 0, 1, {}).empty());                        // targets that are known by heart
  Anomalies young;
  CHECK(young.step(1, 9, 1, {}).empty());
  CHECK(young.step(2, 90, 1, {}).empty());
}

TEST_CASE("anomalies: a validation is told of for each source without targets") {
  CHECK(validated_nothing(4, {}, {}).empty());  // no loss was due
  CHECK(validated_nothing(4, {7}, {}).empty());
  const auto alone = validated_nothing(4, {0}, {});
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].kind == "no_targets");
  CHECK(alone[0].subject == "validation");
  CHECK(alone[0].reason.starts_with("step 4: no target of the validation samples counts"));
  const auto one = validated_nothing(4, {9, 0}, {"web", "chat"});
  REQUIRE(one.size() == 1);
  CHECK(one[0].subject == "validation of chat");
}

TEST_CASE("anomalies: experts that starve and those that every token passes are told once") {
  Anomalies anomalies;
  const ExpertLoad even{.layer = 2, .per_token = 1, .loads = {1, 1, 1, 1}},
      bad{.layer = 2, .per_token = 1, .loads = {3.9, 0.05, 0.05, 0}};
  const auto steps = [&](const ExpertLoad& load, int count) {
    std::vector<Anomaly> all;
    for (int i = 0; i < count; ++i)
      for (Anomaly& found : anomalies.experts(static_cast<uint64_t>(i), {&load, 1}))
        all.push_back(std::move(found));
    return all;
  };
  CHECK(steps(even, 50).empty());
  CHECK(steps(bad, 19).empty());
  CHECK(steps(even, 1).empty());  // begins anew
  CHECK(steps(bad, 19).empty());
  const auto found = steps(bad, 50);
  REQUIRE(found.size() == 2);
  CHECK(found[0].kind == "expert_starved");
  CHECK(found[0].subject == "layer 2");
  CHECK(found[0].reason.find("experts 1, 2, 3 of 4") != std::string::npos);
  CHECK(found[1].kind == "router_collapsed");
  CHECK(found[1].reason.find("experts 0 of 4") != std::string::npos);
  // With every expert chosen by every token nothing has collapsed.
  Anomalies other;
  const ExpertLoad all{.layer = 0, .per_token = 2, .loads = {1, 1}};
  for (int i = 0; i < 50; ++i) CHECK(other.experts(1, {&all, 1}).empty());
}
