// How a run begins, and how nodes and trainers that fail are replaced.
#include <cmath>

#include "actors/supervisor/decision/what_if.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

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

namespace {
/// The last trainer is back: all are idle, and later events are known.
State all_back_with_more() {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  CHECK(all<Join>(decide(0, s, TrainerUp{"n1.0", 2, {2}, {}, 0}, true)).empty());
  return s;
}
}  // namespace

TEST_CASE("job: JOB-1: no generation is planned before all known events are decided") {
  State s = all_back_with_more();
  CHECK(all<Join>(decide(0, s, TrainerUp{"n1.0", 2, {2}, {}, 0}, true)).empty());
  CHECK(only<Join>(decide(0, s, TrainerUp{"n1.0", 2, {2}, {}, 0})).generation == s.generation);
}

TEST_CASE("job: JOB-1: the last of the known events plans, whatever its kind") {
  State s = all_back_with_more();
  const Decision last = decide(0, s, CheckpointFailed{1, "no space left", 1});
  CHECK(only<Join>(last).generation == s.generation);
  CHECK(all<Join>(decide(0, s, CheckpointFailed{1, "no space left", 1})).empty());
  // The last event takes away a node: the plan is made with what is left.
  s = all_back_with_more();
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK(all<Join>(decide(0, s, CheckpointFailed{1, "no space left", 1})).empty());
}

TEST_CASE("job: a plan waits no longer than plan_delay_max_ms for events that are known") {
  State s = all_back_with_more();
  const TrainerUp again{"n1.0", 2, {2}, {}, 0};
  CHECK(all<Join>(decide(plan_delay_max_ms, s, again, true)).empty());
  CHECK(all<Join>(decide(plan_delay_max_ms + 1, s, again, true)).size() == 1);
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

TEST_CASE("job: a spare takes the place of a lost node and gets its state from replicas") {
  State s = training(2, 1);
  CHECK(all<Fence>(decide(0, s, NodeLost{"n0", "its agent is gone"})).size() == 1);
  const Join join = only<Join>(all_idle(s, Steps{2, 3}));
  CHECK(nodes_of(s) == std::vector<std::string>{"n2", "n1"});
  REQUIRE(join.moves.size() == 2);
  CHECK(join.moves[0] == Move{0, 3, "n1.0", false, {"n2.0"}, 2});
  CHECK(join.moves[1] == Move{1, 3, "n1.1", false, {"n2.1"}, 2});
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
    decide(5, s, TrainerUp{trainer_name("n1", slot), 7, {7}, {}, 0});
  CHECK(all<Leave>(decide(6, s, Tick{})).empty());
  decide(7, s, NodeChecked{"n1", true, ""});
  const Leave leave = only<Leave>(decide(8, s, Tick{}));
  CHECK(leave.generation == s.generation);
  decide(9, s, TrainerIdle{"n0.0", s.generation, of(0, made(s.generation, {5, 6}))});
  join = only<Join>(
      decide(9, s, TrainerIdle{"n0.1", s.generation, of(1, made(s.generation, {5, 6}))}));
  CHECK(join.step == 6);
  CHECK(join.moves.size() == 2);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n1"});
}

TEST_CASE("job: a group is made of the remaining nodes of two groups") {
  State s = training(2, 0, 2);  // domains n0 n1 | n2 n3
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

TEST_CASE("job: a paused run can be resumed or stopped") {
  State s = training(2);
  CHECK(all<Leave>(decide(0, s, PauseRequested{true, "me"})).size() == 1);
  Decision d;
  for (const Place& p : places(s.rules, s.layout))
    d = decide(0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {3, 4}))});
  CHECK(all<Join>(d).empty());
  CHECK(all<Shutdown>(decide(s.join_timeout_ms * 9, s, Tick{})).empty());
  State stopped = s;
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).step == 4);
  d = decide(0, stopped, StopRequested{Code::ok, "me", false});
  CHECK(all<Join>(d).size() == 1);
  CHECK(all<StopAtStep>(d).size() == 1);
}

TEST_CASE("job: no_shard: a node holds as many groups as trainers") {
  LayoutRules rules{.trainers_per_node = 2, .shards = 1, .domain_nodes = 1, .domains = 2};
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
      last = decide(0, s, TrainerIdle{name, 1, of(name[3] == '1', made(1, {3, 4}))});
    return last;
  }();
  CHECK(only<Join>(joined).step == 4);
  CHECK(s.rates.changes == Changes{{5, 5e-4}});
  CHECK(s.rates.requested < 0);
  bool told = false;
  for (const Record& r : all<Record>(joined))
    told = told || (r.kind == "learning_rate" && r.reason.text == "0.0005 from step 5 on");
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

}  // namespace simplescale::job::test
