// What reports change: also those that come late, twice, or with what is known already.
#include <doctest/doctest.h>

#include "tests/actors/supervisor/decide_cases.hpp"

using namespace simplescale;
using namespace simplescale::job;
using namespace simplescale::job::test;

namespace {

/// `count` trainers of n1 fail one after the other and come back, one every `every_ms`.
void fail(State& s, int count, int64_t every_ms) {
  for (int i = 0; i < count; ++i) {
    const int64_t now = i * every_ms;
    decide(now, s, TrainerDown{"n1.0", "signal 9"});
    all_idle(s, Steps{3}, now);
    decide(now, s, TrainerUp{"n1.0", 10 + i, {1}, of(0, made(newest_joined(s), {3})), 0});
    decide(now, s, StepCommitted{s.generation, s.committed_step + 1});
  }
}

}  // namespace

TEST_CASE("job: copies of a lost node do not count, also if its report of them comes late") {
  State s = training(2);
  decide(0, s, PeerCopies{"n1", {{0, 3, 1, 2}}, 1});
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(s.nodes.at("n1").peer.empty());
  decide(0, s, PeerCopies{"n1", {{0, 3, 1, 2}}, 1});
  decide(0, s, NodeUp{"n1", 2});
  CHECK(s.nodes.at("n1").peer.empty());
  CHECK(s.nodes.at("n1").answered == 0);
}

TEST_CASE("job: a node that a user takes back has a new budget of failures") {
  State s = training(2, 1);
  s.max_restarts = 2;
  fail(s, 3, 0);
  REQUIRE(s.nodes.at("n1").state == NodeState::drained);
  decide(0, s, DrainRequested{"n1", false, "repaired"});
  CHECK(s.nodes.at("n1").state == NodeState::up);
  CHECK(s.nodes.at("n1").failures_ms.empty());
}

namespace {

/// n1's agent is stopped and continued, or cut off and back: n1 is lost, and its trainers fail late.
/// Returns when it trains again.
void stop_and_continue_agent(State& s, int64_t now) {
  const auto generation = s.generation;
  decide(now, s, NodeLost{"n1", "silent for 5000 ms"});
  all_idle(s, Steps{3}, now);
  decide(now + 20'000, s, NodeUp{"n1", 1});
  for (const char* trainer : {"n1.0", "n1.1"})
    decide(now + 20'000, s, TrainerUp{trainer, 5, {1}, of(0, made(generation, {3})), generation});
  decide(now + 20'001, s, NodeLost{"n1", "an old message: silent for 5000 ms"});
  decide(now + 20'002, s, NodeUp{"n1", 1});
  for (const char* trainer : {"n1.0", "n1.1"}) {
    decide(now + 20'002, s, TrainerUp{trainer, 5, {1}, of(0, made(generation, {3})), generation});
    decide(now + 20'003, s, TrainerDown{trainer, "its process does not answer any more"});
    decide(now + 20'004, s, TrainerUp{trainer, 6, {1}, of(0, made(generation, {3})), 0});
  }
  decide(now + 20'005, s, NodeChecked{"n1", true, ""});
}

}  // namespace

TEST_CASE("job: all failures that one stop of an agent brings count as one or two, not as six") {
  State s = training(2);
  s.max_restarts = 3;
  s.within_ms = 60'000;
  stop_and_continue_agent(s, 0);
  CHECK(s.nodes.at("n1").state == NodeState::up);
  CHECK(s.nodes.at("n1").failures_ms.size() == 2);  // the node was lost twice
  CHECK(s.nodes.at("n1").failed.empty());
}

TEST_CASE("job: what one cause makes fail on a node counts once, whatever the order") {
  using Events = std::vector<Event>;
  const TrainerDown first{"n1.0", "signal 9"}, second{"n1.1", "signal 9"};
  const auto up = [](const char* trainer) {
    return TrainerUp{trainer, 5, {1}, of(0, made(1, {3})), 0};
  };
  struct Row {
    const char* what;
    Events events;
    size_t counted;
  };
  const std::vector<Row> rows = {
      {"both trainers die", {first, second}, 1},
      {"the node is lost, then its trainers are reported",
       {NodeLost{"n1", "gone"}, NodeUp{"n1", 2}, up("n1.0"), first, up("n1.1"), second},
       1},
      {"one trainer hangs, the other one dies with it",
       {TrainerHung{"n1.0", 1, "hung"}, second, TrainerDown{"n1.0", "killed"}},
       1},
      {"a trainer dies before the node has recovered, then the node is lost",
       {first, NodeLost{"n1", "gone"}},
       1},
      {"the same trainer dies again", {first, up("n1.0"), first}, 2},
      {"another one dies after the first is back and all trainers are idle",
       {first, TrainerIdle{"n1.1", 1, of(0, made(1, {3}))}, up("n1.0"), second},
       2},
      {"the node is lost again",
       {NodeLost{"n1", "gone"}, NodeUp{"n1", 2}, NodeLost{"n1", "gone"}},
       2},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    State s = training(2);
    REQUIRE(s.generation == 1);
    for (const Event& event : row.events) decide(0, s, event);
    CHECK(s.nodes.at("n1").failures_ms.size() == row.counted);
    CHECK(s.nodes.at("n0").failures_ms.empty());
  }
}

TEST_CASE("job: failures count for a limited time") {
  State s = training(2);
  s.max_restarts = 2;
  s.budget_steps = 100;
  fail(s, 5, s.within_ms + 1);
  CHECK(s.nodes.at("n1").state == NodeState::up);
}

TEST_CASE("job: a node that cannot start its trainers again is drained") {
  State s = training(2, 1);
  decide(0, s, TrainerDown{"n1.0", {"it ended too often"}, false});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
}

TEST_CASE("job: a report from before the order to join does not make a trainer idle") {
  State s = training(2);
  const int32_t pid = s.trainers.at("n1.0").pid;
  decide(0, s, TrainerUp{"n1.0", pid, {1}, {}, 0});
  CHECK(s.trainers.at("n1.0").state == TrainerState::draining);
}

TEST_CASE("job: GEN-1: a trainer is ready for the generation that it names") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  REQUIRE(newest_joined(s) == 2);
  decide(0, s, TrainerReady{"n0.0", 1});
  CHECK_FALSE(s.trainers.at("n0.0").ready);
  decide(0, s, TrainerReady{"n0.0", 2});
  CHECK(s.trainers.at("n0.0").ready);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK_FALSE(s.trainers.at("n0.0").ready);
}

TEST_CASE("job: a committed step ends the row of failures") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK(s.cycles == 1);
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  CHECK(s.cycles == 0);
}

TEST_CASE("job: an older checkpoint that is saved late is not the newest one") {
  State s = training(2);
  decide(0, s, CheckpointSaved{8});
  decide(0, s, CheckpointSaved{4});
  CHECK(s.checkpoint_step == 8);
}

TEST_CASE("job: a stop is ordered at once if all trainers train") {
  State s = training(2);
  CHECK(only<StopAtStep>(decide(0, s, StopRequested{Code::ok, "enough", false})).reason ==
        "enough");
}

TEST_CASE("job: JOB-3: no copy of a damaged step is taken from the same node again") {
  State s = training(2);
  decide(0, s, PeerCopies{"n0", {{0, 3, 1, 2}, {1, 2, 1, 2}}, 1});
  decide(0, s, TrainerIdle{"n1.0", 1, {}, Fault::bad_copy, 3, "n0.1", "checksum"});
  REQUIRE(s.nodes.at("n0").peer.size() == 1);
  CHECK(s.nodes.at("n0").peer[0].step == 2);
}

TEST_CASE("job: a step that memory and a checkpoint hold comes from memory") {
  State s = training(2);
  decide(0, s, CheckpointSaved{3});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  const Join join = only<Join>(back(s, "n1.0", 0, Steps{3}));
  CHECK(join.step == 3);
  CHECK(join.source == Source::memory);
}

TEST_CASE("job: JOB-1: a checkpoint that is being published is waited for") {
  State s = training(2);
  decide(0, s, CheckpointWritten{8, 1});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  CHECK(all<Join>(back(s, "n1.0", 0, Steps{3})).empty());
  SUBCASE("it is published") {
    decide(0, s, CheckpointSaved{8});
    CHECK(only<Join>(decide(0, s, Tick{})).step == 8);
  }
  SUBCASE("it fails") {
    decide(0, s, CheckpointFailed{8, "disk full", 1});
    CHECK(only<Join>(decide(0, s, Tick{})).step == 3);
  }
  SUBCASE("there is no answer") {
    CHECK(only<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).step == 3);
  }
}

TEST_CASE("job: JOB-4: a checkpoint that nobody publishes is waited for once") {
  State s = training(2);
  decide(0, s, CheckpointsLeft{{1, 2, 3}});
  decide(0, s, CheckpointSaved{3});
  s.older_checkpoints = {1, 2};
  decide(0, s, CheckpointWritten{8, 1});  // then all memory is lost, and the publisher
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{});
  CHECK(all<Join>(back(s, "n1.0", 0, Steps{})).empty());
  const int64_t waited = s.join_timeout_ms + 1;
  REQUIRE(only<Join>(decide(waited, s, Tick{})).step == 3);
  decide(waited, s, TrainerIdle{"n0.0", s.generation, {}, Fault::bad_checkpoint, 3});
  CHECK(only<Join>(all_idle(s, Steps{}, waited)).step == 2);
}

TEST_CASE("job: GEN-2: a generation that this supervisor did not begin ends, whatever its number") {
  State s = training(2, 1);
  const Decision d = decide(0, s, TrainerUp{"n2.0", 1, {1}, {}, s.generation});
  CHECK(only<Fence>(d).generation == 2);
  CHECK(s.trainers.at("n2.0").state == TrainerState::draining);
}
