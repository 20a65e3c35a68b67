// Nodes that are examined, suspected and drained.
#include <algorithm>

#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

TEST_CASE("job: a node that fails its diagnosis is drained") {
  State s = training(2);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, NodeUp{"n1", 7});
  decide(0, s, NodeChecked{"n1", false, "core 1 adds wrongly"});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
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

TEST_CASE("job: a node is not drained if too few groups would be left") {
  State s = training(2);
  CHECK(all<Leave>(decide(0, s, DrainRequested{"n1", true, "me"})).size() == 1);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {3, 4}))});
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  decide(0, s, StepCommitted{s.generation, 5});
  const Decision d = decide(0, s, DrainRequested{"n0", true, "me"});
  CHECK(d.actions.empty());
  CHECK(!d.reason.empty());
  CHECK(s.nodes.at("n0").state == NodeState::up);
}

TEST_CASE("job: a node that spent its budget while it was suspect is drained after its diagnosis") {
  State s = training(2, 1);
  decide(0, s, Suspected{"n1.0", "slow"});
  for (int i = 0; i <= s.max_restarts; ++i) {
    decide(0, s, TrainerDown{"n1.0", "signal 11"});
    decide(0, s, TrainerUp{"n1.0", 2, {2}, of(0, made(1, {3})), 0});
  }
  decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(s.nodes.at("n1").state == NodeState::drained);
}

TEST_CASE("job: a new supervisor orders the diagnosis that its predecessor may not have ordered") {
  State s = training(2, 1);
  CHECK(all<CheckNode>(decide(0, s, Suspected{"n1.0", "slow"})).size() == 1);
  CHECK(only<CheckNode>(decide(0, s, NodeUp{"n1", 1})).node == "n1");
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
        0, s,
        TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {step - 1, step}))});
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
    return r.kind == "diagnosed" && r.subject == "n0, n1, n2" &&
           r.reason.text == "nothing is wrong";
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
      CHECK(r.reason.text ==
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
  decide(0, s, TrainerUp{"n1.0", 2, {2}, of(0, made(1, {3})), 0});
  const Decision idle = all_idle(s, Steps{3});
  CHECK(examined(idle) == Names{"n0"});
  s.join_timeout_ms = 10;  // does not limit a diagnosis
  CHECK(all<Shutdown>(decide(20, s, Tick{})).empty());
  CHECK(only<Join>(decide(0, s, NodeChecked{"n0", true, ""})).step == 3);
}

}  // namespace simplescale::job::test
