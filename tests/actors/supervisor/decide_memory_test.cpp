// Which state the next generation begins with: no committed step is lost (JOB-1), and no step that
// was undone is used (JOB-3).
#include <algorithm>

#include "tests/actors/supervisor/decide_cases.hpp"

using namespace simplescale;
using namespace simplescale::job;
using namespace simplescale::job::test;

TEST_CASE("job: JOB-1: a step that one replica has applied is rolled forward") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  for (const char* name : {"n0.0", "n0.1", "n1.1"})
    decide(0, s, TrainerIdle{name, 1, of(name[3] == '1', made(1, {3, 4}))});
  // n1.0 died before it applied step 4; its replica n0.0 holds step 4.
  const Join join = only<Join>(back(s, "n1.0", 0, Steps{2, 3}));
  CHECK(join.step == 4);
  REQUIRE(join.moves.size() == 1);
  CHECK(join.moves[0] == Move{0, 4, "n0.0", false, {"n1.0"}, 2});
}

// One group, a spare, no copies on peers. The replacement of n0.0 took longer than
// restart_timeout_ms; n1 then began at the checkpoint, and steps 3 to 6 were undone.
TEST_CASE("job: JOB-1: no older checkpoint is used while the memory of a living agent is newer") {
  State s = training(1, 1, 1, 6);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.1", 1, of(1, made(1, {5, 6}))});
  const int64_t late = s.restart_timeout_ms + 1;
  CHECK(all<Join>(decide(late, s, Tick{})).empty());
  CHECK(s.nodes.at("n0").state == NodeState::suspect);
  decide(late, s, NodeChecked{"n0", true, ""});
  CHECK(all<Join>(decide(s.join_timeout_ms - 1, s, Tick{})).empty());

  SUBCASE("the trainer comes up: the step that its node's memory holds") {
    const Join join = only<Join>(back(s, "n0.0", 0, Steps{5, 6}));
    CHECK(join.source == Source::memory);
    CHECK(join.step == 6);
  }
  SUBCASE("the node is drained: its memory still counts") {
    decide(late, s, TrainerDown{"n0.0", {"the node's restart budget is exhausted"}, false});
    decide(late, s, DrainRequested{"n0", true, "maintenance"});
    CHECK(all<Join>(decide(s.join_timeout_ms - 1, s, Tick{})).empty());
    CHECK(only<Join>(back(s, "n0.0", 0, Steps{5, 6})).step == 6);
    CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
  }
  SUBCASE("the node is lost with its memory: the checkpoint, at once") {
    CHECK(all<Join>(decide(late, s, NodeLost{"n0", "gone"})).empty());
    const Join join = only<Join>(all_answer(s, late));
    CHECK(join.source == Source::checkpoint);
    CHECK(join.step == 2);
  }
  SUBCASE("the wait has a deadline") {
    CHECK(only<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).step == 2);
  }
}

TEST_CASE("job: JOB-1: a step that only the memory of stopped trainers may hold is waited for") {
  State s = training(1, 1, 1, 6);
  decide(0, s, CheckpointSaved{6});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  // Step 7 was committed; the supervisor has not heard of it.
  decide(0, s, TrainerIdle{"n0.1", 1, of(1, made(1, {6, 7}))});
  CHECK(all<Join>(decide(s.restart_timeout_ms + 1, s, Tick{})).empty());
  CHECK(only<Join>(back(s, "n0.0", 0, Steps{6, 7})).step == 7);
}

// n1 came back while n0 was ready to begin at the checkpoint. The supervisor did not know the memory
// of n1 yet, and had not heard of step 4.
TEST_CASE("job: JOB-1: a node that came back says what it holds before an older state is used") {
  State s = training(2);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, NodeLost{"n0", "gone"});
  decide(0, s, NodeLost{"n1", "silent"});
  const int64_t later = 10'000;  // the vote is over
  up(s, "n0", {}, later, 2);
  decide(later, s, PeerCopies{"n0", {}, s.generation});
  decide(later, s, NodeUp{"n1", 1});
  CHECK(all<Join>(decide(later, s, NodeChecked{"n0", true, ""})).empty());
  for (const uint32_t shard : {0U, 1U}) {
    const std::string name = trainer_name("n1", static_cast<int>(shard));
    CHECK(all<Join>(decide(later, s, TrainerUp{name, 1, {1}, of(shard, made(1, {3, 4})), 0}))
              .empty());
  }
  CHECK(only<Join>(decide(later, s, PeerCopies{"n1", {}, s.generation})).step == 4);
}

// Both were seeds of the simulation: copies had reached n1 whose report was on its way.
TEST_CASE("job: JOB-1: copies that arrive until an agent answers the fence are used") {
  State s = training(1, 1, 1, 5);
  decide(0, s, CheckpointSaved{2});
  CHECK(all<Join>(decide(0, s, NodeLost{"n0", "gone"})).empty());
  CHECK(all<Join>(decide(1, s, PeerCopies{"n1", {{0, 5, 1, 2}}})).empty());
  SUBCASE("the copies of all shards have arrived") {
    const Join join = only<Join>(decide(2, s, PeerCopies{"n1", {{0, 5, 1, 2}, {1, 5, 1, 2}}, 2}));
    CHECK(join.step == 5);
    CHECK(join.source == Source::memory);
  }
  SUBCASE("one has not: its agent takes it no more") {
    CHECK(only<Join>(decide(2, s, PeerCopies{"n1", {{0, 5, 1, 2}}, 2})).step == 2);
  }
  SUBCASE("the answer to an older fence says nothing") {
    CHECK(all<Join>(decide(2, s, PeerCopies{"n1", {}, 1})).empty());
  }
  SUBCASE("the wait has a deadline") {
    CHECK(only<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).step == 2);
  }
}

TEST_CASE("job: JOB-1: a trainer sends what the memory of a dead trainer of its node holds") {
  State s = training(1, 1, 1, 6);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.0", 0, of(0, made(1, {2}))});     // GEN-1: it has no effect
  decide(0, s, TrainerIdle{"n0.0", 1, of(0, made(1, {5, 6}))});  // from its agent
  CHECK(s.trainers.at("n0.0").state == TrainerState::down);
  decide(0, s, TrainerIdle{"n0.1", 1, of(1, made(1, {5, 6}))});
  all_answer(s);
  const int64_t late = s.restart_timeout_ms + 1;  // n0.0 does not start again, and n0 is suspect
  const Join join = only<Join>(decide(late, s, Tick{}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
  CHECK(join.step == 6);
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{0, 6, "n0.1", true, {"n1.0"}, 2});
  CHECK(join.moves[1] == Move{1, 6, "n0.1", false, {"n1.1"}, 2});

  // That copy is damaged: it is not used again.
  decide(late, s, TrainerIdle{"n1.0", s.generation, {}, Fault::bad_copy, 6, "n0.1", "its hash"});
  CHECK(s.trainers.at("n0.0").held.size() == 1);
}

TEST_CASE("job: JOB-1: an agent sends what its node's memory holds while no trainer there starts") {
  State s = training(1, 1, 1, 6);
  s.nodes.at("n0").address = {7};
  decide(0, s, CheckpointSaved{2});
  for (const uint32_t shard : {0U, 1U}) {
    const std::string name = trainer_name("n0", static_cast<int>(shard));
    decide(0, s, TrainerDown{name, "signal 9"});
    decide(0, s, TrainerIdle{name, 1, of(shard, made(1, {5, 6}))});  // from its agent
  }
  all_answer(s);
  const int64_t late = s.restart_timeout_ms + 1;
  const Join join = only<Join>(decide(late, s, Tick{}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
  CHECK(join.source == Source::memory);
  CHECK(join.step == 6);
  CHECK(join.moves ==
        std::vector<Move>{{0, 6, "n0", true, {"n1.0"}, 2}, {1, 6, "n0", true, {"n1.1"}, 2}});
  const uint64_t generation = s.generation;

  SUBCASE("a failure of another generation has no effect") {
    CHECK(decide(late, s, TrainerIdle{"n0", generation - 1, {}, Fault::failed}).actions.empty());
  }
  SUBCASE("nor has one once the generation has made a step") {
    decide(late, s, StepCommitted{generation, 7});
    CHECK(decide(late, s, TrainerIdle{"n0", generation, {}, Fault::failed}).actions.empty());
  }
  SUBCASE("a copy is damaged: the agent ends the generation, and the copy is not used again") {
    const Decision d =
        decide(late, s, TrainerIdle{"n0", generation, {}, Fault::bad_copy, 6, "n0", "its hash"});
    CHECK(only<Fence>(d).generation == generation + 1);
    CHECK(s.trainers.at("n0.0").held == of(0, made(1, {5})));
    for (const uint32_t shard : {0U, 1U})
      decide(late, s, TrainerIdle{trainer_name("n1", static_cast<int>(shard)), generation});
    CHECK(only<Join>(all_answer(s, late)).step == 5);
  }
}

TEST_CASE("job: a peer's copy of a lost shard is used if it is newer than the checkpoint") {
  State s = training(1, 1, 2, 6);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, PeerCopies{"n0", {{2, 5, 1, 4}, {3, 5, 1, 4}}});
  decide(0, s, PeerCopies{"n2", {{0, 5, 1, 4}, {1, 5, 1, 4}}});
  decide(0, s, NodeLost{"n1", "gone"});
  const Decision d = all_idle(s, Steps{5, 6});
  const Join join = only<Join>(d);
  CHECK(join.source == Source::memory);
  CHECK(join.step == 5);
  CHECK(d.reason.find("begins at step 5 from peer") != std::string::npos);
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{2, 5, "n0.0", true, {"n2.0"}, 4});
  CHECK(join.moves[1] == Move{3, 5, "n0.0", true, {"n2.1"}, 4});
}

TEST_CASE(
    "job: JOB-1: a trainer that is being restarted is awaited before an older state is used") {
  State s = training(1, 1);  // n0 trains, n1 is a spare
  for (int i = 0; i <= s.max_restarts; ++i) {
    decide(0, s, TrainerDown{"n0.0", "signal 9"});
    all_idle(s, Steps{2, 3});
    if (i < s.max_restarts) back(s, "n0.0", 0, Steps{2, 3});
    s.cycles = 0;
  }
  // n0 has spent its budget, and only n0.0 holds shard 0.
  REQUIRE(s.nodes.at("n0").state == NodeState::drained);
  CHECK(s.phase == Phase::recovering);
  State without = s;
  const Join join = only<Join>(back(s, "n0.0", 0, Steps{2, 3}));
  CHECK(join.step == 3);
  CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
  CHECK(only<Join>(decide(without.join_timeout_ms + 1, without, Tick{})).step == 0);
}

TEST_CASE("job: JOB-1: steps made after a mismatch are trusted before one is reported") {
  State s = training(2);
  decide(0, s,
         TrainerIdle{"n0.0", 1, of(0, made(1, {2, 3})), Fault::mismatch, 3, "", "shard 0 differs"});
  CHECK(only<Join>(all_idle(s, Steps{2, 3})).step == 2);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerReady{p.trainer, s.generation});
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(only<Join>(all_idle(s, Steps{4, 5})).step == 5);
}

TEST_CASE("job: recorded steps that were undone later are not committed") {
  State s = training(2);
  decide(0, s, StepCommitted{1, 8});
  CHECK(committed_of(s, 9, 1) == 9);  // recorded before the last supervisor died
  // Replicas differ in step 8.
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, 1, of(p.shard, made(1, {7, 8})), Fault::mismatch, 8});
  REQUIRE(s.committed_step == 7);
  CHECK(committed_of(s, 8, 1) == 7);
  CHECK(committed_of(s, 7, 1) == 7);
  // The next generation has begun at step 7 and has made no step yet.
  REQUIRE(newest_joined(s) == 2);
  CHECK(committed_of(s, 9, 1) == 7);
  CHECK(committed_of(s, 9, 2) == 9);
}

TEST_CASE("job: JOB-2: records that lag behind hold no step of a newer generation") {
  State s = training(2);
  CHECK(recorded_of(s, std::nullopt, std::nullopt) == 0);
  CHECK_FALSE(recorded_of(job_of(2), std::nullopt, std::nullopt));
  decide(0, s, StepCommitted{1, 8});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{5, 6});
  back(s, "n1.0", 0, made(1, {5, 6}));
  REQUIRE(newest_joined(s) == 2);
  REQUIRE(s.joined_step == 6);
  decide(0, s, StepCommitted{2, 7});
  decide(0, s, StepCommitted{2, 9});
  // The disk has no line of generation 2. Steps 7 and 8 of generation 1 are undone.
  CHECK(recorded_of(s, StateVersion{8, 1}, 9) == 6);
  CHECK(recorded_of(s, StateVersion{5, 1}, 9) == 5);
  CHECK(recorded_of(s, StateVersion{9, 2}, 9) == 9);
  // The disk has no line at all.
  CHECK(recorded_of(s, std::nullopt, 9) == 6);
  CHECK(recorded_of(s, std::nullopt, 3) == 3);
  CHECK(recorded_of(s, std::nullopt, std::nullopt) == 6);
}

TEST_CASE(
    "job: JOB-2: records that lag behind by two generations end before what the first undid") {
  State s = training(2);
  s.rollbacks = {{2, 5}, {3, 9}};
  s.joined_step = 8;
  CHECK(committed_of(s, 7, 1) == 4);
  CHECK(committed_of(s, 7, 2) == 7);
  CHECK(committed_of(s, 9, 2) == 8);
}

TEST_CASE("job: JOB-3: a copy of an undone step is not used with copies of the step made again") {
  State s = training(2, 0, 1, 12);
  decide(0, s, NodeLost{"n1", "cut off"});  // it holds step 12; n0 never applied it
  REQUIRE(only<Join>(all_idle(s, Steps{9, 10})).step == 10);
  const uint64_t second = s.generation;
  decide(0, s, StepCommitted{second, 12});
  CHECK(undone(s, 11, 1));
  CHECK(!undone(s, 10, 1));
  CHECK(!undone(s, 12, second));
  // n1 is back when n0.1 fails at the same step. n0.1 restarts with its copies (`whole`) or without
  // them (`lost`).
  decide(0, s, NodeUp{"n1", 1});
  for (int slot = 0; slot < 2; ++slot)
    decide(0, s,
           TrainerUp{trainer_name("n1", slot),
                     1,
                     {1},
                     of(static_cast<uint32_t>(slot), made(1, {11, 12})),
                     0});
  decide(0, s, NodeChecked{"n1", true, ""});
  decide(0, s, TrainerDown{"n0.1", "signal 9"});
  State lost = s, whole = s;
  all_idle(whole, made(second, {11, 12}));
  const Join join = only<Join>(back(whole, "n0.1", 1, made(second, {11, 12})));
  CHECK(join.step == 12);
  REQUIRE(join.moves.size() == 2);  // n1 receives both shards of the step made again
  CHECK(join.moves[0] == Move{0, 12, "n0.0", false, {"n1.0"}, 2});
  CHECK(join.moves[1] == Move{1, 12, "n0.1", false, {"n1.1"}, 2});
  CHECK(!undone(whole, 12, second));
  all_idle(lost, made(second, {11, 12}));
  CHECK(only<Join>(back(lost, "n0.1", 1, Steps{})).source == Source::initialize);
}

TEST_CASE("job: JOB-3: neither is such a copy in a peer store") {
  State s = training(1, 1, 2, 12);
  decide(
      0, s,
      PeerCopies{"n2", {{0, 10, 1, 4}, {1, 10, 1, 4}, {2, 10, 1, 4}, {3, 10, 1, 4}, {3, 5, 1, 4}}});
  decide(0, s, PeerCopies{"n0", {{2, 5, 1, 4}, {2, 10, 2, 4}, {3, 10, 2, 4}}});
  decide(0, s, PeerCopies{"n1", {{0, 5, 1, 4}, {1, 5, 1, 4}}});
  s.rollbacks = {{2, 8}};
  s.generation = 2;
  decide(0, s, NodeLost{"n1", "gone"});
  State before = s;
  CHECK(only<Join>(all_idle(s, Steps{})).step == 0);  // shards 0 and 1 have only undone copies
  before.rollbacks.clear();
  CHECK(only<Join>(all_idle(before, Steps{})).step == 10);
}

TEST_CASE("job: JOB-3: older copies of the step of a checkpoint that was read count as undone") {
  State s = job_of(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 8;
  s.generation = 3;
  REQUIRE(only<Join>(all_up(s)).source == Source::checkpoint);
  CHECK(undone(s, 8, 3));
  CHECK(!undone(s, 7, 3));
  CHECK(!undone(s, 8, 4));
}

TEST_CASE("job: JOB-3: the list of undone steps is bounded; old entries merge to cover more") {
  State s = training(2);
  s.max_restarts = s.give_up_after_cycles = 1000;
  std::vector<Rollback> all_of_them = s.rollbacks;
  uint64_t step = 3;
  for (int i = 0; i < 100; ++i, step += 2) {
    decide(0, s, TrainerDown{"n1.0", "signal 9"});
    all_idle(s, Steps{step});
    REQUIRE(only<Join>(back(s, "n1.0", 0, Steps{step})).step == step);
    all_of_them.push_back({s.generation, step + 1});
  }
  CHECK(s.rollbacks.size() == rollbacks_kept);
  for (uint64_t generation = 1; generation <= s.generation; ++generation)
    for (uint64_t i = 0; i <= step; ++i) {
      const bool is = std::ranges::any_of(
          all_of_them, [&](const Rollback& u) { return i >= u.step && generation < u.generation; });
      const bool recent = generation + rollbacks_kept > s.generation;
      CHECK((recent ? undone(s, i, generation) == is : undone(s, i, generation) >= is));
    }
  // Beginning from an older step replaces the entries of later steps.
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, made(s.rollbacks[10].generation, {s.rollbacks[11].step - 1}));
  const size_t before = s.rollbacks.size();
  back(s, "n1.0", 0, Steps{});
  decide(0, s, StepCommitted{s.generation, step});
  CHECK(s.rollbacks.size() < before);
}

// The run folder hung on the supervisor's host. It lost n1, and began generation 2 with a checkpoint. An
// older standby, on n1, knew only generation 1, and took over; then the other node came to it, too.
TEST_CASE("job: JOB-3: copies of a generation that a lost decision began void older ones") {
  State s = resumed(training(2), 202, 0);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  for (const std::string& node : s.node_order) decide(0, s, PeerCopies{node, {}, s.generation});
  const auto leaves = [&s](const char* name, const std::vector<StateVersion>& held,
                           std::optional<uint64_t> begun = {}) {
    std::vector<StateCopy> copies = of(name[3] == '1', held);
    for (StateCopy& copy : copies) copy.begun = copy.step == begun;
    return decide(0, s, TrainerIdle{name, s.generation - 1, std::move(copies)});
  };
  SUBCASE("it has made the step again") {
    leaves("n0.0", made(2, {3, 4}), 3);
    leaves("n0.1", made(2, {3}), 3);
    leaves("n1.1", made(1, {3, 4}));
    // Step 4: there is shard 0 of generation 2, and shard 1 of generation 1.
    CHECK(only<Join>(back(s, "n1.0", 0, made(1, {3, 4}))).step == 3);
  }
  SUBCASE("it has made several steps, and no copy tells with which it began") {
    leaves("n0.0", made(2, {4, 5}));
    leaves("n0.1", {});
    leaves("n1.1", made(1, {3, 4}));
    // It began with step 3 or an older one, so step 4 of generation 1 is of another branch.
    CHECK(only<Join>(back(s, "n1.0", 0, made(1, {3, 4}))).step == 3);
    CHECK_FALSE(trusted(s, 4, 1));
  }
  SUBCASE("it has made no step, and voids nothing") {
    leaves("n0.0", made(2, {4}), 4);
    leaves("n0.1", {});
    leaves("n1.1", made(1, {3, 4}));
    CHECK(only<Join>(back(s, "n1.0", 0, made(1, {3}))).step == 4);
  }
}
