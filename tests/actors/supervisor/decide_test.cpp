// The decisions of the supervisor, case by case: what a run does when trainers and nodes report,
// fail, finish, or never report.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/what_if.hpp"

using namespace simplescale;
using namespace simplescale::job;

namespace {

/// Two trainers on each node; groups of cell_nodes nodes.
State job_of(int cells, int spares = 0, int cell_nodes = 1) {
  LayoutRules rules{.trainers_per_node = 2,
                    .shards = 2 * cell_nodes,
                    .cell_nodes = cell_nodes,
                    .cells = cells,
                    .min_cells = 1};
  std::vector<std::string> nodes;
  for (int i = 0; i < cells * cell_nodes + spares; ++i) nodes.push_back(node_name(i));
  State s = make_state(rules, nodes);
  s.max_steps = 10;
  return s;
}

template <class A>
std::vector<A> all(const Decision& d) {
  std::vector<A> found;
  for (const Action& action : d.actions)
    if (const A* a = std::get_if<A>(&action)) found.push_back(*a);
  return found;
}

template <class A>
A only(const Decision& d) {
  const auto found = all<A>(d);
  REQUIRE(found.size() == 1);
  return found[0];
}

using Steps = std::vector<uint64_t>;

/// Copies of these steps, made by `generation`.
std::vector<HeldStep> made(uint64_t generation, const Steps& steps) {
  std::vector<HeldStep> copies;
  for (const uint64_t step : steps) copies.push_back({step, generation});
  return copies;
}

Decision up(State& s, const std::string& node, const std::vector<HeldStep>& held = {},
            int64_t now = 0, int32_t pid = 1) {
  decide(now, s, NodeUp{node, pid});
  Decision last;
  for (int slot = 0; slot < 2; ++slot)
    last = decide(now, s, TrainerUp{trainer_name(node, slot), 1, {1}, 0, held, 0});
  return last;
}

Decision all_up(State& s) {
  Decision joined;
  for (const auto& node : s.node_order)
    if (Decision d = up(s, node); !all<Join>(d).empty()) joined = d;
  return joined;
}

/// The agents of all nodes answer the last fence.
Decision all_answer(State& s, int64_t now = 0) {
  Decision joined;
  for (const auto& [name, node] : State(s).nodes)
    if (Decision d = decide(now, s, PeerCopies{name, node.peer, s.generation});
        !all<Join>(d).empty())
      joined = d;
  return joined;
}

/// All agents answer; all draining trainers report idle; each holds its own shard at `held`.
Decision all_idle(State& s, const std::vector<HeldStep>& held, int64_t now = 0) {
  all_answer(s, now);
  Decision last;
  std::map<std::string, uint32_t> shard;
  for (const Place& p : places(s.rules, s.layout)) shard[p.trainer] = p.shard;
  for (const auto& [name, trainer] : State(s).trainers)
    if (trainer.state == TrainerState::draining)
      last = decide(now, s, TrainerIdle{name, s.generation - 1, shard[name], held});
  return last;
}

/// The same, with copies made by the generation that they leave.
Decision all_idle(State& s, const Steps& steps, int64_t now = 0) {
  return all_idle(s, made(newest_joined(s), steps), now);
}

/// A job that trains and has committed `step`.
State training(int cells, int spares = 0, int cell_nodes = 1, uint64_t step = 3) {
  State s = job_of(cells, spares, cell_nodes);
  REQUIRE(all<Join>(all_up(s)).size() == 1);
  decide(0, s, StepCommitted{s.generation, step});
  REQUIRE(s.phase == Phase::training);
  return s;
}

Decision back(State& s, const std::string& trainer, uint32_t shard,
              const std::vector<HeldStep>& held) {
  return decide(0, s, TrainerUp{trainer, 2, {2}, shard, held, 0});
}

Decision back(State& s, const std::string& trainer, uint32_t shard, const Steps& steps) {
  return back(s, trainer, shard, made(newest_joined(s), steps));
}

/// n0 and n2 train. n1 was lost and is back; its first trainer is still in generation 1.
State with_one_back_in_an_older_generation() {
  State s = training(3);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  decide(0, s, TrainerUp{"n1.0", 1, {1}, 0, made(1, {3}), 1});
  return s;
}

std::vector<std::string> nodes_of(const State& s) {
  std::vector<std::string> list;
  for (const auto& cell : s.layout.cells) list.insert(list.end(), cell.begin(), cell.end());
  return list;
}

}  // namespace

TEST_CASE("job: a generation begins when enough nodes are up") {
  State s = job_of(2, 1);
  CHECK(all<Join>(up(s, "n0")).empty());
  const Join join = only<Join>(up(s, "n2"));  // the nodes that report first
  CHECK(join.source == Source::initialize);
  CHECK(join.generation == 1);
  CHECK(s.phase == Phase::starting);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n2"});
}

TEST_CASE("job: with fewer nodes than wanted it starts after join_timeout_ms") {
  State s = job_of(2);
  up(s, "n1");
  CHECK(all<Join>(decide(s.join_timeout_ms, s, Tick{})).empty());
  CHECK(all<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).size() == 1);
  CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
}

TEST_CASE("job: without any node it stops with the code for a requeue") {
  State s = job_of(2);
  CHECK(only<Shutdown>(decide(s.join_timeout_ms + 1, s, Tick{})).exit == Code::requeue);
}

TEST_CASE("job: a killed trainer's process is replaced in place") {
  State s = training(2);
  const Decision down = decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK(only<Fence>(down).generation == 2);
  CHECK(s.phase == Phase::recovering);
  CHECK(all<Join>(all_idle(s, Steps{2, 3})).empty());  // it waits for the process
  const Join join = only<Join>(back(s, "n1.0", 0, Steps{2, 3}));
  CHECK(join.generation == 2);
  CHECK(join.source == Source::memory);
  CHECK(join.step == 3);
  CHECK(join.moves.empty());
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n1"});
  const auto records = all<Record>(decide(0, s, StepCommitted{2, 4}));
  REQUIRE(records.size() == 1);
  CHECK(records[0].phase == "resume");
}

TEST_CASE("job: JOB-1: a step that one replica has applied is rolled forward") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  for (const char* name : {"n0.0", "n0.1", "n1.1"})
    decide(0, s, TrainerIdle{name, 1, name[3] == '1', made(1, {3, 4})});
  // n1.0 died before it applied step 4; its replica n0.0 holds step 4.
  const Join join = only<Join>(back(s, "n1.0", 0, Steps{2, 3}));
  CHECK(join.step == 4);
  REQUIRE(join.moves.size() == 1);
  CHECK(join.moves[0] == Move{0, 4, "n0.0", false, {"n1.0"}});
}

// One group, a spare, no copies on peers. The replacement of n0.0 took longer than
// restart_timeout_ms; n1 then began at the checkpoint, and steps 3 to 6 were undone.
TEST_CASE("job: JOB-1: no older checkpoint is used while the memory of a living agent is newer") {
  State s = training(1, 1, 1, 6);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.1", 1, 1, made(1, {5, 6})});
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
    decide(late, s, TrainerDown{"n0.0", "the node's restart budget is exhausted", false});
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
  decide(0, s, TrainerIdle{"n0.1", 1, 1, made(1, {6, 7})});
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
    CHECK(all<Join>(decide(later, s, TrainerUp{name, 1, {1}, shard, made(1, {3, 4}), 0})).empty());
  }
  CHECK(only<Join>(decide(later, s, PeerCopies{"n1", {}, s.generation})).step == 4);
}

// Both were seeds of the simulation: copies had reached n1 whose report was on its way.
TEST_CASE("job: JOB-1: copies that arrive until an agent answers the fence are used") {
  State s = training(1, 1, 1, 5);
  decide(0, s, CheckpointSaved{2});
  CHECK(all<Join>(decide(0, s, NodeLost{"n0", "gone"})).empty());
  CHECK(all<Join>(decide(1, s, PeerCopies{"n1", {{0, 5, 1}}})).empty());
  SUBCASE("the copies of all shards have arrived") {
    const Join join = only<Join>(decide(2, s, PeerCopies{"n1", {{0, 5, 1}, {1, 5, 1}}, 2}));
    CHECK(join.step == 5);
    CHECK(join.source == Source::memory);
  }
  SUBCASE("one has not: its agent takes it no more") {
    CHECK(only<Join>(decide(2, s, PeerCopies{"n1", {{0, 5, 1}}, 2})).step == 2);
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
  decide(0, s, TrainerIdle{"n0.0", 0, 0, made(1, {2})});     // GEN-1: it has no effect
  decide(0, s, TrainerIdle{"n0.0", 1, 0, made(1, {5, 6})});  // from its agent
  CHECK(s.trainers.at("n0.0").state == TrainerState::down);
  decide(0, s, TrainerIdle{"n0.1", 1, 1, made(1, {5, 6})});
  all_answer(s);
  const int64_t late = s.restart_timeout_ms + 1;  // n0.0 does not start again, and n0 is suspect
  const Join join = only<Join>(decide(late, s, Tick{}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n1"});
  CHECK(join.step == 6);
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{0, 6, "n0.1", true, {"n1.0"}});
  CHECK(join.moves[1] == Move{1, 6, "n0.1", false, {"n1.1"}});

  // That copy is damaged: it is not used again.
  decide(late, s, TrainerIdle{"n1.0", s.generation, 0, {}, Fault::bad_copy, 6, "n0.1", "its hash"});
  CHECK(s.trainers.at("n0.0").held.size() == 1);
}

TEST_CASE("job: a spare takes the place of a lost node and gets its state from replicas") {
  State s = training(2, 1);
  CHECK(all<Fence>(decide(0, s, NodeLost{"n0", "its agent is gone"})).size() == 1);
  const Join join = only<Join>(all_idle(s, Steps{2, 3}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n2", "n1"});
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{0, 3, "n1.0", false, {"n2.0"}});
  CHECK(join.moves[1] == Move{1, 3, "n1.1", false, {"n2.1"}});
}

TEST_CASE(
    "job: without a spare the other group continues, and a group is added when the node is back") {
  State s = training(2);
  decide(0, s, NodeLost{"n1", "its agent is gone"});
  Join join = only<Join>(all_idle(s, Steps{2, 3}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  CHECK(join.step == 3);
  decide(0, s, StepCommitted{s.generation, 4});
  // n1 comes back, is diagnosed, and joins at the end of a step.
  decide(5, s, NodeUp{"n1", 7});
  CHECK(s.nodes.at("n1").state == NodeState::suspect);
  for (int slot = 0; slot < 2; ++slot)
    decide(5, s, TrainerUp{trainer_name("n1", slot), 7, {7}, 0, {}, 0});
  CHECK(all<Leave>(decide(6, s, Tick{})).empty());
  decide(7, s, NodeChecked{"n1", true, ""});
  const Leave leave = only<Leave>(decide(8, s, Tick{}));
  CHECK(leave.generation == s.generation);
  decide(9, s, TrainerIdle{"n0.0", s.generation, 0, made(s.generation, {5, 6})});
  join = only<Join>(decide(9, s, TrainerIdle{"n0.1", s.generation, 1, made(s.generation, {5, 6})}));
  CHECK(join.step == 6);
  CHECK(join.moves.size() == 2);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n1"});
}

TEST_CASE("job: a node that fails its diagnosis is drained") {
  State s = training(2);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, NodeUp{"n1", 7});
  decide(0, s, NodeChecked{"n1", false, "core 1 adds wrongly"});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
}

TEST_CASE("job: a group is made of the remaining nodes of two groups") {
  State s = training(2, 0, 2);  // cells n0 n1 | n2 n3
  decide(0, s, NodeLost{"n1", "gone"});
  decide(0, s, NodeLost{"n2", "gone"});
  const Join join = only<Join>(all_idle(s, Steps{2, 3}));
  // n0 keeps shards 0 and 1, n3 keeps 2 and 3, in one group.
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n3"});
  CHECK(join.step == 3);
  CHECK(join.moves.empty());
}

TEST_CASE(
    "job: a supervisor that loses most nodes at once waits before it continues without them") {
  State s = training(3);
  decide(0, s, NodeLost{"n1", "silent"});
  decide(0, s, NodeLost{"n2", "silent"});
  CHECK(all<Join>(all_idle(s, {2, 3})).empty());
  CHECK(all<Join>(decide(4'000, s, Tick{})).empty());
  const Join join = only<Join>(decide(4'001, s, Tick{}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  CHECK(join.step == 3);
}

TEST_CASE("job: the only group waits for a node, then stops with the code for a requeue") {
  State s = training(1, 0, 2);
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(all<Join>(all_idle(s, Steps{2, 3})).empty());
  CHECK(only<Shutdown>(decide(s.join_timeout_ms + 1, s, Tick{})).exit == Code::requeue);
}

TEST_CASE("job: a peer's copy of a lost shard is used if it is newer than the checkpoint") {
  State s = training(1, 1, 2, 6);
  decide(0, s, CheckpointSaved{2});
  decide(0, s, PeerCopies{"n0", {{2, 5, 1}, {3, 5, 1}}});
  decide(0, s, PeerCopies{"n2", {{0, 5, 1}, {1, 5, 1}}});
  decide(0, s, NodeLost{"n1", "gone"});
  const Decision d = all_idle(s, Steps{5, 6});
  const Join join = only<Join>(d);
  CHECK(join.source == Source::memory);
  CHECK(join.step == 5);
  CHECK(d.reason.find("begins at step 5 from peer") != std::string::npos);
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{2, 5, "n0.0", true, {"n2.0"}});
  CHECK(join.moves[1] == Move{3, 5, "n0.0", true, {"n2.1"}});
}

std::vector<std::string> names(const State& s) {
  std::vector<std::string> list;
  for (const auto& [name, trainer] : s.trainers) list.push_back(name);
  return list;
}

TEST_CASE("job: a step that replicas differ in is undone and made again") {
  State s = training(2);
  Decision d = decide(0, s,
                      TrainerIdle{"n0.0", 1, 0, made(1, {2, 3}), Fault::mismatch, 3, "",
                                  "shard 0 of step 3 differs"});
  CHECK(all<Fence>(d).size() == 1);
  const Join join = only<Join>(all_idle(s, Steps{2, 3}));
  CHECK(join.step == 2);
  // No trainer has made step 3 again, and some have not begun with step 2 yet.
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  all_idle(s, {{2, 2}, {3, 1}});
  CHECK(only<Join>(back(s, "n0.0", 0, made(1, {2, 3}))).step == 2);
  CHECK(is_suspect(s, 3, 1));
  CHECK(!is_suspect(s, 3, 2));
  decide(0, s, StepCommitted{s.generation, 3});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  all_idle(s, Steps{2, 3});
  CHECK(only<Join>(back(s, "n0.0", 0, Steps{2, 3})).step == 3);
}

TEST_CASE("job: a second mismatch does not lift the suspicion from the first") {
  State s = training(2);
  decide(0, s, TrainerIdle{"n0.0", 1, 0, made(1, {2, 3}), Fault::mismatch, 3, "", "differs"});
  all_idle(s, Steps{2, 3});
  for (const std::string& name : names(s)) decide(0, s, TrainerReady{name, s.generation});
  decide(0, s,
         TrainerIdle{"n0.0", s.generation, 0, made(s.generation, {3, 4}), Fault::mismatch, 4, "",
                     "differs"});
  // Step 3 was made again and compared.
  CHECK(only<Join>(all_idle(s, Steps{3, 4})).step == 3);
}

TEST_CASE("job: a damaged copy is not used again") {
  State s = training(2, 1);
  decide(0, s, NodeLost{"n0", "gone"});
  all_idle(s, Steps{2, 3});
  Decision d = decide(
      0, s, TrainerIdle{"n2.0", s.generation, 0, {}, Fault::bad_copy, 3, "n1.0", "hash differs"});
  CHECK(all<Fence>(d).size() == 1);
  all_answer(s);
  for (const auto& [name, shard, steps] : {std::tuple<const char*, uint32_t, Steps>{"n1.0", 0, {2}},
                                           {"n1.1", 1, {2, 3}},
                                           {"n2.1", 1, {}}})
    d = decide(0, s, TrainerIdle{name, s.generation - 1, shard, made(1, steps)});
  CHECK(only<Join>(d).step == 2);
}

TEST_CASE("job: for a damaged checkpoint the next older one is used, until none is left") {
  State s = job_of(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 8;
  s.older_checkpoints = {4, 6};
  Join join = only<Join>(all_up(s));
  for (const uint64_t next : {6, 4, 0}) {
    CHECK(join.source == Source::checkpoint);
    // Two trainers report it: the first report decides.
    const TrainerIdle bad{"n0.0", join.generation, 0, {}, Fault::bad_checkpoint, join.step,
                          "",     "checksum"};
    CHECK(all<Fence>(decide(0, s, bad)).size() == 1);
    decide(0, s,
           TrainerIdle{
               "n1.0", join.generation, 0, {}, Fault::bad_checkpoint, join.step, "", "checksum"});
    join = only<Join>(all_idle(s, Steps{}));
    CHECK(join.step == next);
  }
  CHECK(join.source == Source::initialize);
  // Checkpoints that are saved later are used again.
  decide(0, s, CheckpointSaved{2});
  decide(0, s, CheckpointSaved{4});
  CHECK(s.checkpoint_step == 4);
  CHECK(s.older_checkpoints == std::vector<uint64_t>{2});
  // Those that pruning has removed are forgotten.
  decide(0, s, CheckpointSaved{6, {1, 4, 6}});
  CHECK(s.older_checkpoints == std::vector<uint64_t>{1, 4});
}

TEST_CASE("job: a run that has had a checkpoint does not begin with initial values by itself") {
  State s = job_of(2);
  decide(0, s, CheckpointSaved{8});
  const Join join = only<Join>(all_up(s));
  CHECK(join.step == 8);
  decide(0, s,
         TrainerIdle{
             "n0.0", join.generation, 0, {}, Fault::bad_checkpoint, join.step, "", "checksum"});
  const Decision d = all_idle(s, Steps{});
  CHECK(all<Join>(d).empty());
  CHECK(only<Shutdown>(d).exit == Code::bad_data);
}

TEST_CASE(
    "job: a node that alone cannot read the checkpoint becomes suspect; the other nodes use it") {
  State s = job_of(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 8;
  s.older_checkpoints = {6};
  const uint64_t generation = only<Join>(all_up(s)).generation;
  const TrainerIdle unread{"n1.0", generation, 0, {}, Fault::bad_disk, 8, "", "input/output error"};
  CHECK(all<Fence>(decide(0, s, unread)).size() == 1);
  TrainerIdle also = unread;
  also.trainer = "n1.1";
  decide(0, s, also);
  const Decision d = all_idle(s, Steps{});
  CHECK(only<CheckNode>(d).node == "n1");
  CHECK(only<Join>(d).source == Source::checkpoint);
  CHECK(only<Join>(d).step == 8);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  CHECK(s.older_checkpoints == std::vector<uint64_t>{6});
  // If nothing is wrong with it, it is up again; the failure counts for its budget.
  decide(0, s, StepCommitted{s.generation, 9});
  decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(s.nodes.at("n1").state == NodeState::up);
  CHECK(s.nodes.at("n1").failures_ms.size() == 1);
}

TEST_CASE("job: a checkpoint that no node can read is retried; no older one is used") {
  State s = job_of(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 8;
  s.older_checkpoints = {6};
  int64_t now = 0;
  Join join = only<Join>(all_up(s));
  for (int tries = 0; tries < s.give_up_after_cycles; ++tries) {
    CHECK(join.step == 8);
    for (const char* name : {"n0.0", "n0.1", "n1.0", "n1.1"})
      decide(now, s,
             TrainerIdle{name, join.generation, 0, {}, Fault::bad_disk, 8, "", "stale handle"});
    CHECK(all<Join>(decide(now, s, Tick{})).empty());
    join = only<Join>(decide(now += 6'000, s, Tick{}));
  }
  const Decision last = decide(
      now, s, TrainerIdle{"n0.0", join.generation, 0, {}, Fault::bad_disk, 8, "", "stale handle"});
  CHECK(only<Shutdown>(last).reason.ends_with("n0.0 could not read the checkpoint: stale handle"));
  for (const auto& [name, node] : s.nodes) CHECK(node.state == NodeState::up);
}

TEST_CASE("job: GEN-1: an event that carries an older generation has no effect") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  const State before = s;
  for (const Event& event : std::vector<Event>{
           StepCommitted{1, 9}, TrainerIdle{"n0.0", 1, 0, made(1, {9}), Fault::failed},
           TrainerFinished{"n0.0", 1, 10}, TrainerReady{"n0.0", 1}}) {
    const Decision d = decide(0, s, event);
    CHECK(d.actions.empty());
    CHECK(s.phase == before.phase);
    CHECK(s.generation == before.generation);
    CHECK(s.committed_step == before.committed_step);
  }
}

TEST_CASE("job: a trainer that ignores a fence is killed") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK(all<KillTrainer>(decide(s.fence_timeout_ms, s, Tick{})).empty());
  CHECK(all<KillTrainer>(decide(s.fence_timeout_ms + 1, s, Tick{})).size() == 3);
  CHECK(all<KillTrainer>(decide(s.fence_timeout_ms + 2, s, Tick{})).empty());
}

TEST_CASE("job: a trainer that hangs is killed at once, and the others leave without it") {
  State s = training(2);
  const Decision d = decide(0, s, TrainerHung{"n1.0", s.generation, "hung in step 4"});
  CHECK(only<KillTrainer>(d).trainer == "n1.0");
  CHECK(only<Fence>(d).reason == "n1.0: hung in step 4");
  CHECK(s.trainers.at("n1.0").state == TrainerState::down);
  CHECK(s.nodes.at("n1").failures_ms.size() == 1);
  CHECK(decide(0, s, TrainerHung{"n1.0", s.generation, "again"}).actions.empty());
  CHECK(decide(0, s, TrainerHung{"n0.0", s.generation - 1, "stale"}).actions.empty());  // GEN-1
  decide(0, s, TrainerDown{"n1.0", "hung in step 4"});
  CHECK(s.nodes.at("n1").failures_ms.size() == 1);  // not counted twice
  all_idle(s, Steps{3});
  CHECK(only<Join>(back(s, "n1.0", 0, Steps{3})).step == 3);
}

TEST_CASE("job: failures drain a node unless enough steps are committed between them") {
  for (const bool commits : {true, false}) {
    State s = training(2);
    s.budget_steps = 2;
    uint64_t step = 3;
    for (int i = 0; i <= s.max_restarts; ++i) {
      decide(0, s, TrainerDown{"n1.0", "signal 11"});
      all_idle(s, Steps{step});
      back(s, "n1.0", 0, Steps{step});
      if (s.nodes.at("n1").state == NodeState::drained) break;
      step += commits ? 2 : 1;
      s.max_steps = 100;
      decide(0, s, StepCommitted{s.generation, step});
    }
    CHECK((s.nodes.at("n1").state == NodeState::drained) == !commits);
    if (!commits) CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  }
}

namespace {
/// Every generation fails with a NaN until the run gives up. Returns that decision.
Decision fails_too_often(State& s) {
  Decision d;
  for (int i = 0; i <= s.give_up_after_cycles; ++i) {
    if (i > 0) REQUIRE(all<Join>(all_idle(s, Steps{3})).size() == 1);
    d = decide(0, s,
               TrainerIdle{"n0.0", s.generation, 0, made(newest_joined(s), {3}), Fault::non_finite,
                           4, "n1.0", "step 4: loss nan is not finite", "84-87"});
  }
  return d;
}
}  // namespace

TEST_CASE("job: it gives up after too many generations without a committed step") {
  State s = training(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 3;  // nothing is left to save
  const Shutdown end = only<Shutdown>(fails_too_often(s));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.ends_with("`resume` goes on without them: --skip-samples=84-87"));
}

TEST_CASE("job: JOB-1, a run that gives up first saves the steps that only memory has") {
  // A NaN in the same samples every time: the steps since the last checkpoint were lost.
  for (const bool older_checkpoint : {false, true}) {
    State s = training(2);
    s.has_checkpoint = older_checkpoint;
    s.checkpoint_step = older_checkpoint ? 2 : 0;
    CHECK(all<Shutdown>(fails_too_often(s)).empty());
    const Join join = only<Join>(all_idle(s, Steps{3}));
    CHECK(join.source == Source::memory);
    CHECK(join.step == 3);
    CHECK(join.save_only);
    for (const Place& p : places(s.rules, s.layout))
      CHECK(all<Shutdown>(decide(0, s, TrainerFinished{p.trainer, s.generation, 3})).empty());
    const Shutdown end = only<Shutdown>(decide(0, s, CheckpointSaved{3}));
    CHECK(end.exit == Code::gave_up);
    CHECK(end.reason.find("The last: Trainer n1.0 computed a value that is not finite") !=
          std::string::npos);
    CHECK(end.reason.find("; step 3 was saved; if these samples") != std::string::npos);
    CHECK(end.reason.ends_with("--skip-samples=84-87"));
    CHECK(s.phase == Phase::failed);
  }
}

TEST_CASE("job: a run that gives up ends with its own code if saving fails") {
  State s = training(2);
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  all_idle(s, Steps{3});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerFinished{p.trainer, s.generation, 3});
  const Shutdown end = only<Shutdown>(decide(0, s, CheckpointFailed{3, "disk full", s.generation}));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.find("; step 3 could not be saved: disk full") != std::string::npos);
}

TEST_CASE("job: a run that gives up and cannot save ends after as many failures again") {
  State s = training(2);
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  int tries = 0;
  for (Decision d; all<Shutdown>(d).empty(); ++tries) {
    REQUIRE(tries <= s.give_up_after_cycles);
    REQUIRE(only<Join>(all_idle(s, Steps{3})).save_only);
    d = decide(0, s,
               TrainerIdle{"n0.0", s.generation, 0, made(newest_joined(s), {3}), Fault::failed, 4,
                           "", "a peer was lost"});
  }
  CHECK(s.exit == Code::gave_up);
  CHECK(s.phase == Phase::failed);
}

TEST_CASE("job: JOB-4, a run that gives up ends after the time to save, whatever is missing") {
  State s = training(1);
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  decide(0, s, NodeLost{"n0", "gone"});
  CHECK(all<Shutdown>(decide(1, s, Tick{})).empty());
  State other = s;
  const Shutdown missing = only<Shutdown>(decide(s.join_timeout_ms + 1, s, Tick{}));
  CHECK(missing.exit == Code::gave_up);
  CHECK(missing.reason.find("step 3 could not be saved: ") != std::string::npos);
  CHECK(missing.reason.find("missing: n0 (lost: gone)") != std::string::npos);
  other.join_timeout_ms = 10 * other.save_timeout_ms;
  const Shutdown late = only<Shutdown>(decide(other.save_timeout_ms + 1, other, Tick{}));
  CHECK(late.exit == Code::gave_up);
  CHECK(late.reason.find("step 3 could not be saved within 600 s") != std::string::npos);
}

TEST_CASE("job: JOB-1, drained nodes and fewer groups than min_groups save before the run ends") {
  State s = training(2);
  s.rules.min_cells = 2;
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(all<Join>(all_idle(s, Steps{3})).empty());
  const Join fewer = only<Join>(decide(s.join_timeout_ms + 1, s, Tick{}));
  CHECK(fewer.save_only);
  CHECK(fewer.step == 3);
  for (const char* trainer : {"n0.0", "n0.1"})
    decide(0, s, TrainerFinished{trainer, s.generation, 3});
  const Shutdown end = only<Shutdown>(decide(0, s, CheckpointSaved{3}));
  CHECK(end.exit == Code::requeue);
  CHECK(end.reason.ends_with("; step 3 was saved"));

  State one = training(1);
  one.max_restarts = 0;
  decide(0, one,
         TrainerIdle{"n0.1", one.generation, 1, made(one.generation, {3}), Fault::failed, 4, "",
                     "a collective failed"});
  all_idle(one, Steps{3});
  decide(0, one, TrainerDown{"n0.0", "signal 9"});  // drains the node, the only one
  CHECK(one.nodes.at("n0").state == NodeState::drained);
  decide(0, one, TrainerIdle{"n0.1", one.generation - 1, 1, made(1, {3})});
  all_answer(one);
  const Join drained = only<Join>(back(one, "n0.0", 0, made(1, {3})));
  CHECK(drained.save_only);
  CHECK(drained.step == 3);
}

TEST_CASE("job: a token that the model does not know ends the run with its steps saved") {
  for (const bool reported_first : {true, false}) {
    State s = training(2);
    if (!reported_first)  // another rank learns of it in the vote
      decide(
          0, s,
          TrainerIdle{"n0.0", s.generation, 0, made(1, {3}), Fault::failed, 4, "", "n1.0 fails"});
    CHECK(all<Shutdown>(decide(0, s,
                               TrainerIdle{"n1.0", newest_joined(s), 0, made(1, {3}),
                                           Fault::bad_tokens, 4, "", "t.bin: byte 44: bad"}))
              .empty());
    CHECK(only<Join>(all_idle(s, Steps{3})).save_only);
    for (const Place& p : places(s.rules, s.layout))
      decide(0, s, TrainerFinished{p.trainer, s.generation, 3});
    const Shutdown end = only<Shutdown>(decide(0, s, CheckpointSaved{3}));
    CHECK(end.exit == Code::bad_data);
    CHECK(end.reason == "t.bin: byte 44: bad; step 3 was saved");
  }
}

TEST_CASE("job: a node whose trainers do not restart becomes suspect and is left out") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  const Decision d = decide(s.restart_timeout_ms + 1, s, Tick{});
  CHECK(all<CheckNode>(d).size() == 1);
  CHECK(all<Join>(d).size() == 1);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
}

TEST_CASE("job: a paused run can be resumed or stopped") {
  State s = training(2);
  CHECK(all<Leave>(decide(0, s, PauseRequested{true, "me"})).size() == 1);
  Decision d;
  for (const Place& p : places(s.rules, s.layout))
    d = decide(0, s, TrainerIdle{p.trainer, s.generation, p.shard, made(s.generation, {3, 4})});
  CHECK(all<Join>(d).empty());
  CHECK(all<Shutdown>(decide(s.join_timeout_ms * 9, s, Tick{})).empty());
  State stopped = s;
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).step == 4);
  d = decide(0, stopped, StopRequested{Code::ok, "me", false});
  CHECK(all<Join>(d).size() == 1);
  CHECK(all<StopAtStep>(d).size() == 1);
}

TEST_CASE("job: a node is not drained if too few groups would be left") {
  State s = training(2);
  CHECK(all<Leave>(decide(0, s, DrainRequested{"n1", true, "me"})).size() == 1);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, p.shard, made(s.generation, {3, 4})});
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  decide(0, s, StepCommitted{s.generation, 5});
  const Decision d = decide(0, s, DrainRequested{"n0", true, "me"});
  CHECK(d.actions.empty());
  CHECK(!d.reason.empty());
  CHECK(s.nodes.at("n0").state == NodeState::up);
}

TEST_CASE("job: a supervisor that took over adopts trainers without a fence") {
  State s = training(2);
  for (const auto& node : s.node_order) CHECK(decide(0, s, NodeUp{node, 1}).actions.empty());
  for (const Place& p : places(s.rules, s.layout))
    CHECK(decide(0, s,
                 TrainerUp{p.trainer, 1, {1}, p.shard, made(s.generation, {2, 3}), s.generation})
              .actions.empty());
  CHECK(s.phase == Phase::training);
  // A supervisor without the state of the last one ends the unknown generation.
  State fresh = job_of(2);
  decide(0, fresh, NodeUp{"n0", 1});
  const Decision d = decide(0, fresh, TrainerUp{"n0.0", 1, {1}, 0, made(41, {2, 3}), 41});
  CHECK(only<Fence>(d).generation == 42);
}

TEST_CASE("job: a restarted agent counts as lost and back") {
  State s = training(2);
  const Decision d = decide(0, s, NodeUp{"n1", 99});
  CHECK(all<Fence>(d).size() == 1);
  CHECK(all<CheckNode>(d).size() == 1);
}

TEST_CASE("job: the end waits for the last checkpoint, also after a failure") {
  State s = training(2);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  all_idle(s, Steps{9, 10});
  CHECK(only<Join>(back(s, "n0.0", 0, Steps{9, 10})).step == 10);
  Decision d;
  for (const Place& p : places(s.rules, s.layout))
    d = decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
  CHECK(all<Shutdown>(d).empty());
  CHECK(only<Shutdown>(decide(0, s, CheckpointSaved{10})).exit == Code::ok);
}

TEST_CASE("job: a run that is stopped before its last step is stopped, not finished") {
  State s = training(2);
  s.max_steps = 27;
  State all_steps = s;
  decide(0, s, StopRequested{Code::ok, "stopped by Ctrl-C", false});
  CHECK(std::string(to_string(s.phase)) == "stopping");
  decide(0, s, CheckpointSaved{10});
  Decision d;
  for (const Place& p : places(s.rules, s.layout))
    d = decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
  CHECK(only<Shutdown>(d).reason == "stopped by Ctrl-C at step 10 of 27");
  CHECK(only<Shutdown>(d).exit == Code::ok);
  CHECK(all<Record>(d).back().kind == "stopped");
  CHECK(s.phase == Phase::stopped);
  CHECK(over(s.phase));

  decide(0, all_steps, CheckpointSaved{27});
  for (const Place& p : places(all_steps.rules, all_steps.layout))
    d = decide(0, all_steps, TrainerFinished{p.trainer, all_steps.generation, 27});
  CHECK(all<Record>(d).back().kind == "finished");
  CHECK(all_steps.phase == Phase::finished);
}

TEST_CASE("job: a last checkpoint that cannot be saved ends the run, in any order of the reports") {
  for (const bool early : {false, true}) {
    State s = training(2);
    const CheckpointFailed failed{10, "no space left", s.generation};
    if (early) decide(0, s, failed);
    Decision d;
    for (const Place& p : places(s.rules, s.layout))
      d = decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
    if (!early) d = decide(0, s, failed);
    CHECK(only<Shutdown>(d).exit == Code::io);
  }
}

TEST_CASE("job: the end of the run is the last record") {
  State s = training(2);
  s.max_restarts = 0;
  s.cycles = s.give_up_after_cycles;
  s.has_checkpoint = true;
  s.checkpoint_step = 3;
  const Decision d = decide(0, s, TrainerDown{"n0.0", "signal 9"});
  CHECK(only<Shutdown>(d).exit == Code::gave_up);
  CHECK(all<Record>(d).back().kind == "failed");
}

TEST_CASE("job: GEN-1: a checkpoint that an older generation could not save does not end the run") {
  for (const bool early : {false, true}) {
    State s = training(2);
    const CheckpointFailed failed{10, "its copy was replaced", s.generation};
    for (const Place& p : places(s.rules, s.layout))
      decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
    decide(0, s, TrainerDown{"n0.0", "signal 9"});
    if (early) decide(0, s, failed);
    all_idle(s, Steps{9, 10});
    back(s, "n0.0", 0, Steps{9, 10});
    for (const Place& p : places(s.rules, s.layout))
      decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
    if (!early) CHECK(all<Shutdown>(decide(0, s, failed)).empty());
    CHECK(only<Shutdown>(decide(0, s, CheckpointSaved{10})).exit == Code::ok);
  }
}

TEST_CASE("job: JOB-4: restoring the state has a deadline, the first step a longer one") {
  State s = job_of(2);
  all_up(s);
  const int64_t late = s.join_timeout_ms + 1;
  State slow = s;
  decide(0, slow, TrainerReady{"n0.0", slow.generation});
  CHECK(only<Fence>(decide(late, slow, Tick{})).generation == s.generation + 1);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerReady{p.trainer, s.generation});
  CHECK(all<Fence>(decide(late, s, Tick{})).empty());
  CHECK(all<Fence>(decide(10 * late, s, Tick{})).empty());
  CHECK(all<Fence>(decide(100 * late, s, Tick{})).size() == 1);  // nothing waits forever
}

TEST_CASE("job: recorded steps that were undone later are not committed") {
  State s = training(2);
  decide(0, s, StepCommitted{1, 8});
  CHECK(committed_of(s, 9, 1) == 9);  // recorded before the last supervisor died
  // Replicas differ in step 8.
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, 1, p.shard, made(1, {7, 8}), Fault::mismatch, 8});
  REQUIRE(s.committed_step == 7);
  CHECK(committed_of(s, 8, 1) == 7);
  CHECK(committed_of(s, 7, 1) == 7);
  // The next generation has begun at step 7 and has made no step yet.
  REQUIRE(newest_joined(s) == 2);
  CHECK(committed_of(s, 9, 1) == 7);
  CHECK(committed_of(s, 9, 2) == 9);
}

TEST_CASE("job: no_shard: a node holds as many groups as trainers") {
  LayoutRules rules{.trainers_per_node = 2, .shards = 1, .cell_nodes = 1, .cells = 2};
  const auto all = places(rules, Layout{{{"n0"}, {"n1"}}});
  REQUIRE(all.size() == 4);
  CHECK(all[3].group == 3);
  CHECK(all[3].shard == 0);
}

TEST_CASE("job: what_if returns the decisions and does not change the state") {
  const State s = training(2, 1);
  CHECK(what_if(s, "kill_agent", "n0") ==
        "If node n0 dies, n2 takes the place of n0, and training goes on with step 4: no step is "
        "lost.");
  CHECK(what_if(s, "kill_trainer", "n0.0") ==
        "If trainer n0.0 is killed, it is replaced, and training goes on with step 4: no step is "
        "lost.");
  CHECK(what_if(s, "kill_agent", "n9").find("no node") != std::string::npos);
}

TEST_CASE("job: GEN-1: an answer to an older fence does not count for the last one") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.0", 1, 0, made(1, {3})});
  CHECK(s.trainers.at("n0.0").state == TrainerState::draining);
}

TEST_CASE("job: GEN-2: the number of a generation that was left is not used again") {
  State s = job_of(2);
  const uint64_t first = only<Join>(all_up(s)).generation;
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{});
  const uint64_t second = only<Join>(back(s, "n1.0", 0, Steps{})).generation;
  CHECK(second > first);
  // A pause ends it before its first step.
  decide(0, s, PauseRequested{true, "me"});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, p.shard, {}});
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).generation > second);
}

TEST_CASE("job: JOB-1: steps made after a mismatch are trusted before one is reported") {
  State s = training(2);
  decide(0, s,
         TrainerIdle{"n0.0", 1, 0, made(1, {2, 3}), Fault::mismatch, 3, "", "shard 0 differs"});
  CHECK(only<Join>(all_idle(s, Steps{2, 3})).step == 2);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerReady{p.trainer, s.generation});
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(only<Join>(all_idle(s, Steps{4, 5})).step == 5);
}

TEST_CASE("job: a supervisor without a state ends an unknown generation once") {
  State s = job_of(4);
  size_t fences = 0;
  for (const auto& node : s.node_order) {
    decide(0, s, NodeUp{node, 1});
    for (int slot = 0; slot < 2; ++slot)
      fences += all<Fence>(
                    decide(0, s, TrainerUp{trainer_name(node, slot), 1, {1}, 0, made(41, {3}), 41}))
                    .size();
  }
  CHECK(fences == 1);
  CHECK(s.generation == 42);
}

TEST_CASE("job: a new supervisor orders the diagnosis that its predecessor may not have ordered") {
  State s = training(2, 1);
  CHECK(all<CheckNode>(decide(0, s, Suspected{"n1.0", "slow"})).size() == 1);
  CHECK(only<CheckNode>(decide(0, s, NodeUp{"n1", 1})).node == "n1");
}

TEST_CASE("job: a node that spent its budget while it was suspect is drained after its diagnosis") {
  State s = training(2, 1);
  decide(0, s, Suspected{"n1.0", "slow"});
  for (int i = 0; i <= s.max_restarts; ++i) {
    decide(0, s, TrainerDown{"n1.0", "signal 11"});
    decide(0, s, TrainerUp{"n1.0", 2, {2}, 0, made(1, {3}), 0});
  }
  decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
}

TEST_CASE("job: a trainer that comes back in an old generation does not end the current one") {
  State s = training(2);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  CHECK(all<Fence>(decide(0, s, TrainerUp{"n1.0", 1, {1}, 0, made(1, {3}), 1})).empty());
  // A trainer that should train in the current one does.
  CHECK(all<Fence>(decide(0, s, TrainerUp{"n0.0", 1, {1}, 0, made(1, {3}), 1})).size() == 1);
}

TEST_CASE("job: GEN-1: a trainer that came back is idle once it has left its old generation") {
  State s = with_one_back_in_an_older_generation();
  // Meanwhile the generation changes without a fence.
  decide(0, s, DrainRequested{"n2", true, "me"});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, p.shard, made(s.generation, {4, 5})});
  decide(0, s, TrainerIdle{"n1.0", 1, 0, made(1, {3})});
  CHECK(s.trainers.at("n1.0").state == TrainerState::idle);
}

TEST_CASE(
    "job: JOB-4: a trainer that does not leave an old generation is killed when others wait") {
  State s = with_one_back_in_an_older_generation();
  decide(0, s, TrainerUp{"n1.1", 1, {1}, 0, made(1, {3}), 0});
  CHECK(all<KillTrainer>(decide(s.fence_timeout_ms + 1, s, Tick{})).empty());  // no trainer waits
  const int64_t since = 2 * s.fence_timeout_ms;
  CHECK(all<Leave>(decide(since, s, DrainRequested{"n2", true, "me"})).size() == 1);
  CHECK(all<KillTrainer>(decide(since + s.fence_timeout_ms, s, Tick{})).empty());
  CHECK(only<KillTrainer>(decide(since + s.fence_timeout_ms + 1, s, Tick{})).trainer == "n1.0");
  CHECK(all<KillTrainer>(decide(since + s.fence_timeout_ms + 2, s, Tick{})).empty());
}

TEST_CASE("job: a mismatch that was handled is not handled again") {
  State s = training(3);
  const TrainerIdle mismatch{"n0.0",          1, 0,  made(1, {2, 3}),
                             Fault::mismatch, 3, "", "shard 0 differs"};
  decide(0, s, mismatch);
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(only<Join>(all_idle(s, Steps{2, 3})).step == 2);
  const size_t suspect_steps = s.suspect_steps.size();
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  decide(0, s, TrainerUp{"n1.0", 1, {1}, 0, made(1, {2, 3}), 1});
  TrainerIdle late = mismatch;
  late.trainer = "n1.0";
  decide(0, s, late);
  CHECK(s.trainers.at("n1.0").state == TrainerState::idle);
  CHECK(s.suspect_steps.size() == suspect_steps);
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
    decide(
        0, s,
        TrainerUp{
            trainer_name("n1", slot), 1, {1}, static_cast<uint32_t>(slot), made(1, {11, 12}), 0});
  decide(0, s, NodeChecked{"n1", true, ""});
  decide(0, s, TrainerDown{"n0.1", "signal 9"});
  State lost = s, whole = s;
  all_idle(whole, made(second, {11, 12}));
  const Join join = only<Join>(back(whole, "n0.1", 1, made(second, {11, 12})));
  CHECK(join.step == 12);
  REQUIRE(join.moves.size() == 2);  // n1 receives both shards of the step made again
  CHECK(join.moves[0] == Move{0, 12, "n0.0", false, {"n1.0"}});
  CHECK(join.moves[1] == Move{1, 12, "n0.1", false, {"n1.1"}});
  CHECK(!undone(whole, 12, second));
  all_idle(lost, made(second, {11, 12}));
  CHECK(only<Join>(back(lost, "n0.1", 1, Steps{})).source == Source::initialize);
}

TEST_CASE("job: JOB-3: neither is such a copy in a peer store") {
  State s = training(1, 1, 2, 12);
  decide(0, s, PeerCopies{"n2", {{0, 10, 1}, {1, 10, 1}, {2, 10, 1}, {3, 10, 1}, {3, 5, 1}}});
  decide(0, s, PeerCopies{"n0", {{2, 5, 1}, {2, 10, 2}, {3, 10, 2}}});
  decide(0, s, PeerCopies{"n1", {{0, 5, 1}, {1, 5, 1}}});
  s.undoings = {{2, 8}};
  s.generation = 2;
  decide(0, s, NodeLost{"n1", "gone"});
  State before = s;
  CHECK(only<Join>(all_idle(s, Steps{})).step == 0);  // shards 0 and 1 have only undone copies
  before.undoings.clear();
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
  std::vector<Undoing> all_of_them = s.undoings;
  uint64_t step = 3;
  for (int i = 0; i < 100; ++i, step += 2) {
    decide(0, s, TrainerDown{"n1.0", "signal 9"});
    all_idle(s, Steps{step});
    REQUIRE(only<Join>(back(s, "n1.0", 0, Steps{step})).step == step);
    all_of_them.push_back({s.generation, step + 1});
  }
  CHECK(s.undoings.size() == undoings_kept);
  for (uint64_t generation = 1; generation <= s.generation; ++generation)
    for (uint64_t i = 0; i <= step; ++i) {
      const bool is = std::ranges::any_of(
          all_of_them, [&](const Undoing& u) { return i >= u.step && generation < u.generation; });
      const bool recent = generation + undoings_kept > s.generation;
      CHECK((recent ? undone(s, i, generation) == is : undone(s, i, generation) >= is));
    }
  // Beginning from an older step replaces the entries of later steps.
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, made(s.undoings[10].generation, {s.undoings[11].step - 1}));
  const size_t before = s.undoings.size();
  back(s, "n1.0", 0, Steps{});
  CHECK(s.undoings.size() < before);
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

namespace {

std::vector<std::string> examined(const Decision& d) {
  std::vector<std::string> nodes;
  for (const CheckNode& check : all<CheckNode>(d)) nodes.push_back(check.node);
  return nodes;
}

/// All trainers report that they have left after `step`, as they were ordered to.
Decision all_left(State& s, uint64_t step) {
  Decision last;
  for (const Place& p : places(s.rules, s.layout))
    last = decide(
        0, s, TrainerIdle{p.trainer, s.generation, p.shard, made(s.generation, {step - 1, step})});
  return last;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "job: a diagnosis begins after a step, all trainers wait for it and continue with that step") {
  State s = training(2, 1);
  const Decision asked = decide(0, s, DiagnoseRequested{{"n0", "n1", "n2"}, "me"});
  CHECK(only<Leave>(asked).generation == s.generation);
  CHECK(examined(asked).empty());
  CHECK(diagnosing(s));
  CHECK(examined(all_left(s, 4)) == Names{"n0", "n1", "n2"});
  CHECK(decide(0, s, DiagnoseRequested{{"n0"}, "you"}).reason == "a diagnosis is under way");
  CHECK(all<Join>(decide(0, s, NodeChecked{"n0", true, ""})).empty());
  CHECK(all<Join>(decide(0, s, NodeChecked{"n2", true, ""})).empty());
  CHECK(all<Join>(decide(s.check_timeout_ms, s, Tick{})).empty());
  const Decision over = decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(only<Join>(over).step == 4);
  CHECK(nodes_of(s) == Names{"n0", "n1"});
  CHECK(all<Fence>(over).empty());
  CHECK(!diagnosing(s));
  const auto told = all<Record>(over);
  CHECK(std::ranges::any_of(told, [](const Record& r) {
    return r.kind == "diagnosed" && r.subject == "n0, n1, n2" && r.reason == "nothing is wrong";
  }));
}

TEST_CASE("job: a paused run is diagnosed at once and stays paused") {
  State s = training(2);
  decide(0, s, PauseRequested{true, "me"});
  all_left(s, 4);
  CHECK(examined(decide(0, s, DiagnoseRequested{{"n1"}, "me"})) == Names{"n1"});
  const Decision over = decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(!diagnosing(s));
  CHECK(all<Join>(over).empty());
  CHECK(s.paused);
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).step == 4);
}

TEST_CASE("job: a run that is resumed during a diagnosis waits for its end") {
  State s = training(2);
  decide(0, s, PauseRequested{true, "me"});
  all_left(s, 4);
  decide(0, s, DiagnoseRequested{{"n1"}, "me"});
  CHECK(all<Join>(decide(0, s, PauseRequested{false, "me"})).empty());
  CHECK(only<Join>(decide(0, s, NodeChecked{"n1", true, ""})).step == 4);
}

TEST_CASE("job: a diagnosis ends also when nodes fail it, are lost, or do not answer") {
  State s = training(3, 1);
  decide(0, s, DiagnoseRequested{{"n0", "n1", "n2", "n3", "n9"}, "me"});
  all_left(s, 4);
  decide(0, s, NodeChecked{"n0", true, ""});
  decide(0, s, NodeChecked{"n1", false, "memory: slow"});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
  decide(0, s, NodeLost{"n3", "gone"});
  CHECK(diagnosing(s));
  const Decision over = decide(s.check_timeout_ms + 1, s, Tick{});
  CHECK(s.nodes.at("n2").state == NodeState::drained);
  CHECK(only<Join>(over).step == 4);
  CHECK(nodes_of(s) == Names{"n0"});
  for (const Record& r : all<Record>(over))
    if (r.kind == "diagnosed")
      CHECK(r.reason ==
            "n1 is drained: it failed its diagnosis: memory: slow; n2 is drained: its "
            "diagnosis did not end within 60 s; n3 is lost: gone");
}

TEST_CASE(
    "job: a request to stop cancels a diagnosis that has not begun and waits for one that has") {
  State s = training(2);
  decide(0, s, DiagnoseRequested{{"n0"}, "me"});
  decide(0, s, StopRequested{Code::ok, "enough", false});
  CHECK(decide(0, s, DiagnoseRequested{{"n0"}, "me"}).reason == "the run is being stopped");
  const Decision left = all_left(s, 4);
  CHECK(examined(left).empty());
  CHECK(all<StopAtStep>(left).size() == 1);

  s = training(2);
  decide(0, s, DiagnoseRequested{{"n0"}, "me"});
  CHECK(examined(all_left(s, 4)) == Names{"n0"});
  CHECK(all<Join>(decide(0, s, StopRequested{Code::ok, "enough", false})).empty());
  const Decision over = decide(0, s, NodeChecked{"n0", true, ""});
  CHECK(only<Join>(over).step == 4);
  CHECK(all<StopAtStep>(over).size() == 1);
}

TEST_CASE("job: a failure before a diagnosis is fenced at once; the diagnosis follows") {
  State s = training(2);
  decide(0, s, DiagnoseRequested{{"n0"}, "me"});
  CHECK(all<Fence>(decide(0, s, TrainerDown{"n1.0", "signal 9"})).size() == 1);
  decide(0, s, TrainerUp{"n1.0", 2, {2}, 0, made(1, {3}), 0});
  const Decision idle = all_idle(s, Steps{3});
  CHECK(examined(idle) == Names{"n0"});
  s.join_timeout_ms = 10;  // does not limit a diagnosis
  CHECK(all<Shutdown>(decide(20, s, Tick{})).empty());
  CHECK(only<Join>(decide(0, s, NodeChecked{"n0", true, ""})).step == 3);
}

TEST_CASE("job: a learning rate takes effect with the next generation, and replays keep it") {
  using Changes = std::vector<RateChange>;
  State s = training(2);
  s.learning_rate = 1e-3;
  const Decision set = decide(0, s, SetRequested{"train.learning_rate", 5e-4, "me"});
  CHECK(only<Leave>(set).generation == 1);  // all trainers leave after the same step
  CHECK(s.rates.changes.empty());
  // They leave after step 4, so step 5 is the first with the new rate.
  const Decision joined = [&] {
    Decision last;
    for (const char* name : {"n0.0", "n0.1", "n1.0", "n1.1"})
      last = decide(0, s, TrainerIdle{name, 1, name[3] == '1', made(1, {3, 4})});
    return last;
  }();
  CHECK(only<Join>(joined).step == 4);
  CHECK(s.rates.changes == Changes{{5, 5e-4}});
  CHECK(s.rates.requested < 0);
  bool told = false;
  for (const Record& r : all<Record>(joined))
    told = told || (r.kind == "learning_rate" && r.reason == "0.0005 from step 5 on");
  CHECK(told);
  // A recovery repeats step 5 with the same rate.
  decide(0, s, StepCommitted{s.generation, 5});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{4});
  CHECK(only<Join>(back(s, "n1.0", 0, Steps{4})).step == 4);
  CHECK(s.rates.changes == Changes{{5, 5e-4}});
  // A newer rate replaces those of undone steps.
  decide(0, s, StepCommitted{s.generation, 5});
  decide(0, s, SetRequested{"train.learning_rate", 1e-4, "me"});
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  CHECK(s.committed_step == 3);
  CHECK(s.rates.changes == Changes{{4, 1e-4}});
}

TEST_CASE("job: a learning rate that cannot be is refused") {
  State s = training(2);
  s.min_learning_rate = 1e-4;
  for (const double rate : {-1.0, 5e-5, 1.5, std::nan("")}) {
    const Decision d = decide(0, s, SetRequested{"train.learning_rate", rate, "me"});
    CHECK(d.actions.empty());
    CHECK(d.reason ==
          "train.learning_rate must be at least 0.0001 (train.min_learning_rate) and at most 1");
  }
  for (uint64_t i = 0; i < rate_changes_max; ++i) s.rates.changes.push_back({i + 1, 1e-3});
  CHECK(decide(0, s, SetRequested{"train.learning_rate", 1e-3, "me"}).actions.empty());
}
