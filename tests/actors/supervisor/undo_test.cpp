// Steps that are undone until the generation that began with an older state has made a step: a node
// that comes back before that gives them back (JOB-1).
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/actors/supervisor/decide_cases.hpp"

using namespace simplescale;
using namespace simplescale::job;
using simplescale::job::test::all;
using simplescale::job::test::of;

namespace {

using Held = std::vector<StateVersion>;

/// Two nodes of two trainers, each of which is a group with both shards.
struct Job {
  State s = make_state({.trainers_per_node = 2, .shards = 2, .domain_nodes = 1, .domains = 2},
                       {"n0", "n1"});
  std::vector<Record> records;
  std::vector<Join> joins;

  void tell(const Event& event, int64_t now = 0) {
    const Decision d = decide(now, s, event);
    for (const Record& record : all<Record>(d)) records.push_back(record);
    for (const Join& join : all<Join>(d)) joins.push_back(join);
  }
  void trainer_up(const std::string& name, const Held& held, int32_t pid = 1) {
    tell(TrainerUp{name, pid, {1}, of(static_cast<uint32_t>(name.back() - '0'), held), 0});
  }
  void node_up(const std::string& node, const Held& held) {
    tell(NodeUp{node, 1});
    for (const char* slot : {".0", ".1"}) trainer_up(node + slot, held);
  }
  void answer() {
    for (const auto& [name, node] : State(s).nodes)
      if (node.state != NodeState::lost) tell(PeerCopies{name, node.peer, s.generation});
  }
  void idle(const Held& held) {
    answer();
    for (const auto& [name, trainer] : State(s).trainers)
      if (trainer.state == TrainerState::draining)
        tell(TrainerIdle{name, s.generation - 1,
                         of(static_cast<uint32_t>(name.back() - '0'), held)});
  }
  void comes_back(const Held& held) {
    node_up("n1", held);
    tell(NodeChecked{"n1", true, ""});
    tell(PeerCopies{"n1", {}, s.generation});
  }
  const Join& newest() const { return joins.back(); }
  bool has(const std::string& kind, const std::string& subject) const {
    return std::ranges::any_of(
        records, [&](const Record& r) { return r.kind == kind && r.subject == subject; });
  }
};

/// Generation 1 has committed step 12. n1, which alone holds it, is lost. Generation 2 begins with
/// step 10.
Job undone() {
  Job j;
  j.s.max_steps = 100;
  j.node_up("n0", {});
  j.node_up("n1", {});
  REQUIRE(j.joins.size() == 1);
  j.tell(StepCommitted{1, 12});
  j.tell(NodeLost{"n1", "cut off"});
  j.idle({{9, 1}, {10, 1}});
  REQUIRE(j.joins.size() == 2);
  REQUIRE(j.newest().step == 10);
  REQUIRE(j.has("steps_undone", "2"));
  return j;
}

const Held newer = {{11, 1}, {12, 1}};

/// Then a trainer loses its memory: shard 0 is only in the checkpoint of step 6, and generation 3 begins
/// with that. Another trainer ends it.
Job undone_to_checkpoint() {
  Job j = undone();
  j.tell(CheckpointSaved{6});
  j.tell(TrainerDown{"n0.0", "signal 9"});
  j.idle({{10, 2}});
  j.trainer_up("n0.0", {}, 2);
  j.answer();
  REQUIRE(j.joins.size() == 3);
  REQUIRE(j.newest().source == Source::checkpoint);
  REQUIRE(j.newest().step == 6);
  j.tell(TrainerDown{"n0.1", "signal 9"});
  return j;
}

/// Then peer copies give step 10 back: generation 4 begins with it.
Job partly_regained() {
  Job j = undone_to_checkpoint();
  j.idle({{6, 3}});
  j.tell(PeerCopies{"n0", {{0, 10, 1, 2}, {1, 10, 1, 2}}, j.s.generation});
  j.trainer_up("n0.1", {{6, 3}}, 2);
  REQUIRE(j.newest().generation == 4);
  REQUIRE(j.newest().step == 10);
  REQUIRE(j.newest().regained);
  return j;
}

}  // namespace

TEST_SUITE("undo") {
  TEST_CASE("undo: CHECKPOINT-1, a checkpoint whose step was undone meanwhile does not count") {
    // It was published while the decision that undid its step waited for the run folder.
    Job j = undone();
    j.tell(CheckpointSaved{12, 1});
    CHECK(!j.s.has_checkpoint);
    CHECK(j.has("checkpoint_failed", "step-12"));
    j.tell(CheckpointSaved{10, 1});
    CHECK(j.s.checkpoint_step == 10);
  }

  TEST_CASE("undo: CHECKPOINT-1, nor does it if the step was regained before the news came") {
    Job j = undone();
    j.tell(TrainerDown{"n0.0", "signal 9"});
    j.comes_back(newer);
    j.idle({{10, 2}});
    j.trainer_up("n0.0", {{10, 2}}, 2);
    REQUIRE(j.newest().regained);
    REQUIRE(j.s.committed_step == 12);
    j.tell(CheckpointSaved{12, 1});
    CHECK(!j.s.has_checkpoint);
    j.tell(CheckpointSaved{12, 3});
    CHECK(j.s.checkpoint_step == 12);
  }

  TEST_CASE("undo: JOB-1: a node that comes back after a failed restore gives the steps back") {
    Job j = undone();
    j.tell(TrainerDown{"n0.0", "signal 9"});
    SUBCASE("its trainers are up") {
      j.comes_back(newer);
    }
    SUBCASE("its agent says what the memory of its trainers holds: they are waited for") {
      j.tell(NodeUp{"n1", 1});
      j.tell(NodeChecked{"n1", true, ""});
      for (const uint32_t shard : {0U, 1U})
        j.tell(TrainerIdle{trainer_name("n1", static_cast<int>(shard)), j.s.generation - 1,
                           of(shard, newer)});
      j.idle({{10, 2}});
      j.trainer_up("n0.0", {{10, 2}}, 2);
      CHECK(j.joins.size() == 2);
      for (const char* name : {"n1.0", "n1.1"}) j.trainer_up(name, newer);
    }
    j.idle({{10, 2}});
    j.trainer_up("n0.0", {{10, 2}}, 2);
    REQUIRE(j.joins.size() == 3);
    CHECK(j.newest().step == 12);
    CHECK(j.newest().source == Source::memory);
    CHECK(j.newest().regained);
    CHECK(j.newest().generation == 3);
    CHECK(j.has("steps_regained", "2"));
    CHECK(j.s.committed_step == 12);
    // What generation 2 may have made is of the other history.
    CHECK(trusted(j.s, 10, 2));
    CHECK_FALSE(trusted(j.s, 11, 2));
    CHECK(trusted(j.s, 12, 1));
    j.tell(StepCommitted{3, 13});
    CHECK_FALSE(trusted(j.s, 11, 2));
    CHECK(trusted(j.s, 12, 1));
    CHECK_FALSE(trusted(j.s, 13, 1));
  }

  TEST_CASE("undo: JOB-1: it comes back before the generation has made a step, which then ends") {
    Job j = undone();
    for (const char* name : {"n0.0", "n0.1"}) j.tell(TrainerReady{name, 2});
    j.node_up("n1", newer);
    CHECK(j.has("newer_state", "n1"));
    CHECK(j.s.generation == 3);
    j.idle({{10, 2}});
    REQUIRE(j.joins.size() == 3);
    CHECK(j.newest().step == 12);
    CHECK(j.newest().regained);
    // Both nodes train; the memory of n1 is the source.
    for (const Move& move : j.newest().moves) CHECK(node_of(move.source) == "n1");
  }

  TEST_CASE("undo: JOB-1: the oldest of the undone steps counts again, too") {
    Job j = undone();
    j.node_up("n1", {{10, 1}, {11, 1}});
    j.idle({{10, 2}});
    REQUIRE(j.joins.size() == 3);
    CHECK(j.newest().step == 11);
  }

  TEST_CASE("undo: JOB-4: a node that comes and goes does not end the run, nor stop it for ever") {
    Job j = undone();
    // n1 comes back, and is lost again while it sends its state.
    for (int i = 0; i <= j.s.max_restarts; ++i) {
      const uint64_t older = j.newest().generation;  // began with step 10
      j.node_up("n1", newer);
      REQUIRE(j.s.generation == older + 1);
      j.idle({{10, older}});
      REQUIRE(j.newest().step == 12);
      j.tell(NodeLost{"n1", "cut off"});
      j.tell(
          TrainerIdle{"n0.0", j.s.generation, of(0, {{10, older}}), Fault::failed, 12, "", "lost"});
      j.idle({{10, older}});
      REQUIRE(j.newest().step == 10);
      REQUIRE_FALSE(j.s.giving_up);
    }
    const size_t began = j.joins.size();
    j.comes_back(newer);
    CHECK(j.s.nodes.at("n1").state == NodeState::drained);
    CHECK(j.joins.size() == began);
    j.tell(StepCommitted{j.s.generation, 11});
    CHECK(j.s.phase == Phase::training);
    CHECK(j.s.newer_states == 0);
  }

  TEST_CASE("undo: JOB-3: once a step has been made again, the older ones stay undone") {
    Job j = undone();
    SUBCASE("it was committed") {
      j.tell(StepCommitted{2, 11});
      j.comes_back(newer);
      j.tell(TrainerDown{"n0.0", "signal 9"});
      j.idle({{10, 2}, {11, 2}});
      j.trainer_up("n0.0", {{10, 2}, {11, 2}}, 2);
      CHECK(j.newest().step == 11);
    }
    SUBCASE("the supervisor has not heard of it: as far as memory shows") {
      j.tell(TrainerDown{"n0.0", "signal 9"});
      j.idle({{10, 2}, {11, 2}});
      j.trainer_up("n0.0", {{10, 2}, {11, 2}}, 2);
      CHECK(j.newest().step == 11);
      j.comes_back(newer);
      CHECK(j.s.generation == 3);
    }
    CHECK_FALSE(j.newest().regained);
    CHECK_FALSE(trusted(j.s, 12, 1));
    CHECK(trusted(j.s, 11, 2));
  }

  TEST_CASE("undo: JOB-3: the undone steps stay so if a copy of a step made again is known") {
    Job j = undone();
    j.tell(TrainerDown{"n0.0", "signal 9"});
    j.comes_back(newer);
    SUBCASE("of every shard") {
      j.idle({{10, 2}, {11, 2}});
      j.trainer_up("n0.0", {{10, 2}, {11, 2}}, 2);
      CHECK(j.newest().step == 11);
      CHECK_FALSE(j.newest().regained);
      CHECK(trusted(j.s, 11, 2));
      CHECK_FALSE(trusted(j.s, 11, 1));
      CHECK_FALSE(trusted(j.s, 12, 1));
    }
    SUBCASE("of one shard only: that step is made once more") {
      j.idle({{10, 2}, {11, 2}});
      j.trainer_up("n0.0", {{10, 2}}, 2);
      CHECK(j.newest().step == 10);
      CHECK_FALSE(j.newest().regained);
      CHECK_FALSE(trusted(j.s, 12, 1));
    }
  }

  TEST_CASE("undo: JOB-3: a successor does not know what a generation in progress has made") {
    Job j = undone();
    for (auto& [name, node] : j.s.nodes) node.answered = 0;  // as take_over() gets it
    j.comes_back(newer);
    CHECK(j.s.generation == 2);
    CHECK(j.s.rollbacks.back().tentative);
    j.answer();  // no trainer has made a step
    CHECK(j.s.generation == 3);
  }

  TEST_CASE("undo: JOB-1: two generations that made no step are both taken back") {
    Job j = undone_to_checkpoint();
    j.comes_back(newer);
    j.idle({{6, 3}});
    j.trainer_up("n0.1", {{6, 3}}, 2);
    CHECK(j.newest().step == 12);
    CHECK(j.has("steps_regained", "6"));
    CHECK_FALSE(trusted(j.s, 6, 3));  // read from the checkpoint: perhaps other bits
    CHECK_FALSE(trusted(j.s, 11, 2));
    CHECK(trusted(j.s, 10, 2));
    CHECK(trusted(j.s, 6, 1));
  }

  TEST_CASE("undo: JOB-1: the older of two rollbacks can be taken back after the newer one") {
    Job j = partly_regained();
    j.node_up("n1", newer);
    j.idle({{10, 4}});
    CHECK(j.newest().generation == 5);
    CHECK(j.newest().step == 12);
    CHECK(j.newest().regained);
    CHECK(trusted(j.s, 10, 4));
    CHECK_FALSE(trusted(j.s, 6, 3));
    for (const uint64_t generation : {2, 3, 4}) CHECK_FALSE(trusted(j.s, 11, generation));
    j.tell(StepCommitted{5, 13});
    CHECK(trusted(j.s, 12, 1));
    for (const uint64_t generation : {2, 3, 4}) CHECK_FALSE(trusted(j.s, 11, generation));
  }

  TEST_CASE("undo: JOB-1: what a rollback that was taken back had made counts if no more is left") {
    // Generation 2 makes step 13, of which the supervisor does not hear. n1 comes back, and generation
    // 3 begins with step 12 of generation 1. Before it makes a step, n1 is lost and n0 comes back.
    Job j = undone();
    j.tell(NodeLost{"n0", "cut off"});
    j.comes_back(newer);
    const uint64_t third = j.newest().generation;
    REQUIRE(j.newest().step == 12);
    REQUIRE(j.newest().regained);
    j.tell(NodeLost{"n1", "its host died"});
    j.node_up("n0", {{12, 2}, {13, 2}});
    j.tell(NodeChecked{"n0", true, ""});
    j.answer();
    CHECK(j.newest().generation > third);
    CHECK(j.newest().step == 13);
    CHECK(j.newest().regained);
    for (const bool settled : {false, true}) {
      CAPTURE(settled);
      if (settled) j.tell(StepCommitted{j.s.generation, 14});
      CHECK(trusted(j.s, 13, 2));
      CHECK(trusted(j.s, 10, 1));
      CHECK_FALSE(trusted(j.s, 12, 1));
      CHECK_FALSE(trusted(j.s, 12, third));
    }
  }

  TEST_CASE(
      "undo: JOB-1: of two rollbacks that were taken back the older one can count again alone") {
    // Generation 2 makes step 13, of which the supervisor does not hear, and copies it. Generation 3
    // begins with a checkpoint and fails. Generation 4 begins with step 12 of generation 1.
    Job j = undone_to_checkpoint();
    j.comes_back(newer);
    j.idle({{6, 3}});
    j.trainer_up("n0.1", {{6, 3}}, 2);
    REQUIRE(j.newest().generation == 4);
    REQUIRE(j.newest().step == 12);
    j.tell(NodeLost{"n1", "its host died"});
    j.tell(PeerCopies{"n0", {{0, 13, 2, 2}, {1, 13, 2, 2}}, 0});
    j.idle({{6, 3}});
    CHECK(j.newest().step == 13);
    CHECK(j.newest().regained);
    CHECK(trusted(j.s, 13, 2));
    CHECK_FALSE(trusted(j.s, 12, 1));
    CHECK_FALSE(trusted(j.s, 6, 3));
    CHECK(std::ranges::is_partitioned(j.s.rollbacks, std::logical_not(), &Rollback::tentative));
  }

  TEST_CASE("undo: JOB-1: each of several histories that were left can count again") {
    // Generation 2 began with step 10 of generation 1, 3 with the checkpoint of step 6. The supervisor
    // hears of no step of either. Generation 4 goes on with step 10 of generation 1.
    Job j = partly_regained();
    const auto all = [](uint64_t step, uint64_t generation) {
      return std::vector<StateCopy>{{0, step, generation, 2}, {1, step, generation, 2}};
    };
    const auto regains = [&](uint64_t step, uint64_t generation) {
      j.tell(TrainerDown{"n0.1", "signal 9"});
      j.tell(PeerCopies{"n0", all(step, generation), j.s.generation});
      j.idle({});
      j.trainer_up("n0.1", {}, 2);
      CHECK(j.newest().generation == j.s.generation);
      CHECK(j.newest().step == step);
      CHECK(j.newest().regained);
      CHECK_FALSE(trusted(j.s, 11, 1));
    };
    SUBCASE("of the older one first") {
      regains(20, 2);
      CHECK_FALSE(trusted(j.s, 7, 3));
    }
    SUBCASE("of the newer one at once") {}
    regains(30, 3);
    CHECK_FALSE(trusted(j.s, 11, 2));
  }

  TEST_CASE("undo: JOB-3: copies of two histories are not mixed when rollbacks are taken back") {
    // Generation 2 makes step 12, of which the supervisor does not hear. Generation 3 begins with step
    // 12 of generation 1. Then both nodes are lost, and come back with one shard each.
    Job j = undone();
    j.tell(CheckpointSaved{6});
    j.tell(NodeLost{"n0", "cut off"});
    j.comes_back(newer);
    REQUIRE(j.newest().regained);
    j.tell(NodeLost{"n1", "cut off"});
    for (const char* node : {"n0", "n1"}) j.tell(NodeUp{node, 1});
    j.trainer_up("n0.0", {});
    j.trainer_up("n0.1", {{11, 2}, {12, 2}});
    j.trainer_up("n1.0", newer);
    j.trainer_up("n1.1", {});
    for (const char* node : {"n0", "n1"}) j.tell(NodeChecked{node, true, ""});
    j.answer();
    REQUIRE(j.joins.size() == 4);
    CHECK(j.newest().source == Source::checkpoint);
    CHECK(j.newest().step == 6);
  }

  TEST_CASE("undo: JOB-3: what was made before a rollback was taken back stays undone") {
    Job j = partly_regained();
    SUBCASE("when the rollbacks that were not taken back become final") {
      // Generation 2 began with step 4, and the checkpoint of step 6 was published after that.
      std::ranges::find_if(j.s.rollbacks, &Rollback::tentative)->step = 5;
      settle_rollbacks(j.s);
    }
    SUBCASE("when the oldest rollbacks are merged") {
      j.s.rollbacks.insert(j.s.rollbacks.end(), rollbacks_kept - j.s.rollbacks.size(),
                           j.s.rollbacks.back());
      for (const uint64_t generation : {4, 5}) {
        j.tell(TrainerIdle{"n0.0", generation, of(0, {{10, generation}}), Fault::failed, 10, "",
                           "lost"});
        j.idle({{10, generation}});
      }
      REQUIRE(j.newest().generation == 6);
    }
    CHECK_FALSE(trusted(j.s, 6, 3));
    CHECK(trusted(j.s, 10, 4));
  }

  TEST_CASE("undo: JOB-3: a new learning rate makes the rollback final") {
    Job j = undone();
    j.tell(TrainerDown{"n0.0", "signal 9"});
    j.tell(SetRequested{"train.learning_rate", 0.5, "a user"});
    j.idle({{10, 2}});
    j.trainer_up("n0.0", {{10, 2}}, 2);
    REQUIRE(j.newest().generation == 3);
    CHECK_FALSE(j.s.rollbacks.back().tentative);
    j.comes_back(newer);
    CHECK(j.s.generation == 3);
  }

  TEST_CASE("undo: GEN-2: a supervisor uses numbers that its predecessor could not know") {
    Job j = undone();
    State successor = j.s;
    successor.generation_floor = 102;
    const Decision old = decide(0, j.s, TrainerDown{"n0.0", "signal 9"});
    const Decision now = decide(0, successor, TrainerDown{"n0.0", "signal 9"});
    CHECK(all<Fence>(old).front().generation == 3);
    CHECK(all<Fence>(now).front().generation == 103);
    // A trainer reports a generation that the predecessor began without its knowledge.
    decide(0, successor, NodeUp{"n1", 1});
    const Decision fenced = decide(0, successor, TrainerUp{"n1.0", 1, {1}, {}, 104});
    CHECK(all<Fence>(fenced).front().generation == 105);
  }
}
