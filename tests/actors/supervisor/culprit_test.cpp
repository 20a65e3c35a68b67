// An incident names what failed, for each kind of fault, though the reports arrive in the worst
// order: the trainers that wait for the one that failed report first.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/incidents.hpp"
#include "runtime/config/config.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job {
namespace {

constexpr uint64_t kGeneration = 1;

std::vector<StateCopy> copies(const std::string& trainer) {
  return test::of(static_cast<uint32_t>(trainer.back() - '0'), {{5, kGeneration}});
}

/// A trainer leaves the generation by itself.
TrainerIdle leaves(const char* trainer, Fault fault, const char* suspect, const char* reason) {
  return {.trainer = trainer,
          .generation = kGeneration,
          .held = copies(trainer),
          .fault = fault,
          .step = 6,
          .suspect = suspect,
          .reason = {reason}};
}
TrainerIdle waited(const char* trainer) {
  return leaves(trainer, Fault::failed, "", "shard@1, all_gather: rank 1 has left");
}

struct Row {
  std::string kind;
  std::vector<Event> reports;
  std::string headline;  // begins with the culprit; "": there is no incident
};

const std::vector<Row> kRows = {
    {"kill_trainer",
     {waited("n0.1"), TrainerDown{"n1.0", "its process is dying"},
      TrainerDown{"n1.0", "killed by signal 9 (Killed)"}},
     "n1.0: killed by signal 9 (Killed)"},
    {"kill_trainer",
     {TrainerDown{"n1.0", "its process is dying"}, waited("n0.1"),
      TrainerDown{"n1.0", "killed by signal 9 (Killed)"}},
     "n1.0: killed by signal 9 (Killed)"},
    {"segfault_trainer",
     {waited("n0.0"), waited("n0.1"), TrainerDown{"n1.0", "killed by signal 11"}},
     "n1.0: killed by signal 11"},
    {"oom_trainer",
     {waited("n0.0"), TrainerDown{"n1.0", "killed by signal 6 (Aborted)"}},
     "n1.0: killed by signal 6"},
    {"stop_trainer",
     {waited("n1.1"), TrainerDown{"n1.0", "stopped, silent for 1100 ms"}},
     "n1.0: stopped, silent for 1100 ms"},
    {"hang_trainer",
     {TrainerHung{"n0.0", kGeneration, "hung in step 6"}, TrainerDown{"n0.0", "hung in step 6"}},
     "n0.0: hung in step 6"},
    {"hang_trainer",  // found by the collective's deadline
     {waited("n1.1"), waited("n1.0"), waited("n0.1"), Tick{}},
     "n0.0: killed: it did not leave its generation"},
    {"hang_trainer",  // found by its node
     {TrainerDown{"n0.0", "stuck at step 6"}, waited("n1.0")},
     "n0.0: stuck at step 6"},
    {"nan_loss",
     {leaves("n0.0", Fault::non_finite, "n1.0", "step 6: loss nan is not finite"),
      leaves("n1.0", Fault::non_finite, "n1.0", "step 6: loss nan is not finite")},
     "n1.0: step 6: loss nan"},
    {"nan_loss",  // of several trainers: the training diverges
     {leaves("n0.0", Fault::non_finite, "", "step 6: loss nan is not finite")},
     "step 6: loss nan"},
    {"bitflip_gradient",  // more than two replicas: the majority is right
     {leaves("n0.0", Fault::mismatch, "n1.0", "replicas differ: shard 0 of step 5")},
     "n1.0: replicas differ"},
    {"bitflip_gradient",  // two replicas: known once the step has been made again
     {leaves("n0.0", Fault::mismatch, "", "replicas differ: shard 0 of step 5")},
     "replicas differ"},
    {"corrupt_snapshot",
     {leaves("n0.0", Fault::failed, "n1.0", "step 6: group 1: trainer 0: the state has changed"),
      leaves("n1.0", Fault::bad_copy, "n1.0", "the state of step 5 has changed in memory")},
     "n1.0: the state of step 5 has changed in memory"},
    {"corrupt_checkpoint",
     {leaves("n0.0", Fault::bad_checkpoint, "", "shard 0: wrong checksum")},
     "step-6: shard 0: wrong checksum"},
    {"kill_agent", {waited("n0.0"), waited("n0.1"), NodeLost{"n1", "gone"}}, "n1: gone"},
    {"stop_agent", {NodeLost{"n1", "silent"}}, "n1: silent"},
    {"partition_node", {waited("n0.0"), NodeLost{"n1", "silent"}}, "n1: silent"},
    {"lose_messages", {NodeLost{"n1", "silent"}}, "n1: silent"},
    {"slow_node", {Tick{}}, ""},
    {"slow_link", {Tick{}}, ""},
    {"disk_full", {CheckpointFailed{5, "no space left", kGeneration}}, ""},
    {"slow_disk", {Tick{}}, ""},
};

/// Two groups of two trainers that have committed step 5.
State training() {
  State s = make_state(
      {.trainers_per_node = 2, .shards = 2, .domain_nodes = 1, .domains = 2, .min_domains = 1},
      {"n0", "n1"});
  s.max_steps = 10;
  for (const auto& node : s.node_order) {
    decide(0, s, NodeUp{node, 1});
    for (int slot = 0; slot < 2; ++slot) decide(0, s, TrainerUp{trainer_name(node, slot), 1, {1}});
  }
  decide(0, s, StepCommitted{s.generation, 5});
  REQUIRE(s.phase == Phase::training);
  REQUIRE(s.generation == kGeneration);
  return s;
}

/// The headline of the incident that these reports cause; "" if there is none.
std::string headline(const std::vector<Event>& reports) {
  State s = training();
  Incidents incidents;
  std::string headline;
  int64_t now = 0;
  auto handle = [&](const Event& event) {
    for (const Action& action : decide(now, s, event).actions)
      if (const auto* record = std::get_if<Record>(&action))
        if (const auto done = incidents.record(s, *record, now); done.summary)
          headline = (*done.summary)["subject"];
  };
  for (const Event& event : reports) {
    if (std::holds_alternative<Tick>(event)) now += 3'000;  // longer than fence_timeout_ms
    handle(event);
  }
  if (s.phase == Phase::training) return "";
  // The recovery: every trainer leaves, those that died come back, the next step is committed.
  now += 5'000;
  for (const auto& [name, t] : State(s).trainers) {
    if (s.nodes.at(node_of(name)).state != NodeState::up) continue;
    if (t.state == TrainerState::draining)
      handle(TrainerIdle{name, s.generation - 1, copies(name)});
    if (t.state == TrainerState::down) handle(TrainerUp{name, 2, {2}, copies(name)});
  }
  handle(Tick{});
  handle(StepCommitted{s.generation, 6});
  return headline;
}

}  // namespace

TEST_SUITE("culprit") {
  TEST_CASE("culprit: for each kind of fault, in any order of the reports") {
    std::set<std::string> tested = {"kill_supervisor"};  // see incidents_test.cpp
    for (const Row& row : kRows) {
      tested.insert(row.kind);
      CAPTURE(row.kind);
      const std::string found = headline(row.reports);
      CAPTURE(found);
      CHECK(found.empty() == row.headline.empty());
      CHECK(found.starts_with(row.headline));
    }
    for (const std::string& kind : fault_kinds()) {
      CAPTURE(kind);
      CHECK(tested.contains(kind));
    }
  }

  TEST_CASE("culprit: only a wrong state counts against the node of a suspect") {
    for (const Fault fault : {Fault::failed, Fault::non_finite, Fault::mismatch, Fault::bad_copy}) {
      State s = training();
      decide(0, s, leaves("n0.0", fault, "n1.0", "a fault"));
      const size_t counted = fault == Fault::mismatch || fault == Fault::bad_copy;
      CHECK(s.nodes.at("n1").failures_ms.size() == counted);
      CHECK(s.nodes.at("n0").failures_ms.empty());
    }
  }
}

}  // namespace simplescale::job
