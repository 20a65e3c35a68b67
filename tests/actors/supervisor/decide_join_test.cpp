// Nodes that join a running job, and nodes that leave it for good.
#include "actors/supervisor/lost_majority.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

namespace {

/// Two nodes train, and two may join.
State growing(int spares = 0) {
  State s = training(2, spares);
  s.rules.spares = spares;
  s.rules.max_nodes = 4 + spares;
  return s;
}

/// Every trainer of the layout leaves the generation after step 4.
Decision all_leave(State& s, int64_t now = 0) {
  Decision last;
  for (const Place& p : places(s.rules, s.layout))
    last = decide(now, s,
                  TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {3, 4}))});
  return last;
}

std::string told(const Decision& d, const std::string& kind) {
  for (const Record& record : all<Record>(d))
    if (record.kind == kind) return record.subject + " " + record.reason.text;
  return "";
}

}  // namespace

TEST_CASE("job: JOB-7: the first hello of an unknown node is a decision of its own") {
  State s = growing();
  const Decision d = decide(10, s, NodeUp{"n2", 7});
  CHECK(only<AdmitNode>(d).node == "n2");
  CHECK(told(d, "node_up") == "n2 it joins the running job");
  CHECK(s.node_order == std::vector<std::string>{"n0", "n1", "n2"});
  CHECK(s.trainers.contains("n2.1"));
  CHECK(all<AdmitNode>(decide(11, s, NodeUp{"n2", 7})).empty());  // the same agent, again
}

TEST_CASE("job: JOB-7: a name that is not the run's is refused, and counts nowhere") {
  State s = growing();
  for (const char* name : {"n4", "n02", "x", "n-1"}) {
    const EndNode end = only<EndNode>(decide(0, s, NodeUp{name, 7}));
    CHECK(end.exit == Code::bad_config);
    CHECK(end.reason.find("cluster.max_nodes") != std::string::npos);
  }
  CHECK(s.nodes.size() == 2);
  CHECK_FALSE(lost_majority(job_of(2), {"n2", "n3", "n4"}, {}));  // votes of unknown nodes
}

TEST_CASE("job: JOB-7: nodes that join within seconds begin one generation together") {
  State s = growing();
  up(s, "n2", {}, 1'000);
  CHECK(all<Leave>(decide(3'000, s, Tick{})).empty());
  up(s, "n3", {}, 5'000);
  CHECK(all<Leave>(decide(9'900, s, Tick{})).empty());  // n3 may be followed by further nodes
  CHECK(only<Leave>(decide(10'000, s, Tick{})).generation == 1);
  const Join join = only<Join>(all_leave(s, 10'001));
  CHECK(join.step == 4);
  CHECK(join.moves.size() == 2);
  CHECK(nodes_of(s) == std::vector<std::string>{"n0", "n1", "n2", "n3"});
}

TEST_CASE("job: a node that joins replaces a lost one at once") {
  State s = growing();
  up(s, "n2", {}, 1'000);
  decide(1'100, s, NodeLost{"n0", "its agent is gone"});
  all_idle(s, Steps{3}, 1'200);
  CHECK(nodes_of(s) == std::vector<std::string>{"n2", "n1"});
}

TEST_CASE("job: as many spares stay idle as were configured") {
  State s = growing(1);
  up(s, "n3", {}, 0);
  CHECK(only<Leave>(decide(5'000, s, Tick{})).generation == 1);
  all_leave(s, 5'001);
  CHECK(nodes_of(s).size() == 3);  // of four
  decide(6'000, s, StepCommitted{s.generation, 5});
  CHECK(all<Leave>(decide(20'000, s, Tick{})).empty());
}

TEST_CASE("job: JOB-1: a node that is removed ends once steps are made without it") {
  State s = growing();
  const Decision asked = decide(0, s, DrainRequested{"n1", true, "by a user", true});
  CHECK(only<Leave>(asked).reason == "node n1 is removed");
  CHECK(all<EndNode>(asked).empty());
  CHECK(all<EndNode>(all_leave(s)).empty());
  CHECK(nodes_of(s) == std::vector<std::string>{"n0"});
  // The first step may be one that a predecessor recorded.
  CHECK(all<EndNode>(decide(0, s, StepCommitted{s.generation, 5})).empty());
  const Decision end = decide(0, s, StepCommitted{s.generation, 6});
  CHECK(only<EndNode>(end).node == "n1");
  CHECK(only<EndNode>(end).exit == Code::ok);
  CHECK(told(end, "removed") == "n1 by a user");
  CHECK_FALSE(s.nodes.contains("n1"));
  CHECK_FALSE(s.trainers.contains("n1.0"));
  CHECK(decide(0, s, NodeLost{"n1", "its agent is gone"}).actions.empty());
  // Another host takes its name.
  CHECK(only<AdmitNode>(decide(0, s, NodeUp{"n1", 99})).node == "n1");
  CHECK(s.nodes.at("n1").state == NodeState::up);
}

TEST_CASE("job: a removed agent that returns trains no more, but its memory counts") {
  State s = growing();
  decide(0, s, StepCommitted{s.generation, 4});
  up(s, "n2", {}, 0, 7);
  decide(0, s, NodeLost{"n2", "cut off"});
  CHECK(told(decide(0, s, DrainRequested{"n2", true, "by a user", true}), "removed") ==
        "n2 by a user");
  // While steps are made it ends at once.
  CHECK(all<EndNode>(decide(0, s, NodeUp{"n2", 7})).size() == 1);
  CHECK_FALSE(s.nodes.contains("n2"));
  // In a recovery it stays until steps are made.
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  CHECK(all<EndNode>(decide(0, s, NodeUp{"n2", 7})).empty());
  CHECK(s.nodes.at("n2").state == NodeState::drained);
  // A user may take the removal back.
  CHECK_FALSE(s.removed.empty());
  decide(0, s, DrainRequested{"n2", false, "by a user"});
  CHECK(s.nodes.at("n2").state == NodeState::up);
  CHECK(s.removed.empty());
}

TEST_CASE("job: a node that was removed while it was lost trains no more") {
  State s = growing();
  decide(0, s, NodeLost{"n1", "cut off"});
  all_idle(s, Steps{3});
  decide(0, s, DrainRequested{"n1", true, "by a user", true});
  up(s, "n1", {}, 0, 7);
  decide(0, s, NodeChecked{"n1", true, ""});
  CHECK(s.nodes.at("n1").state == NodeState::up);
  decide(0, s, StepCommitted{s.generation, 4});
  CHECK(all<Leave>(decide(10'000, s, Tick{})).empty());
  CHECK(only<EndNode>(decide(0, s, StepCommitted{s.generation, 5})).node == "n1");
}

TEST_CASE("job: removals keep as many groups as training needs, and can be taken back") {
  State s = growing();
  decide(0, s, DrainRequested{"n1", true, "by a user", true});
  CHECK(decide(0, s, DrainRequested{"n0", true, "by a user", true}).reason ==
        "cannot remove n0: fewer than 1 group would be left");
  decide(0, s, DrainRequested{"n1", false, "by a user"});
  CHECK(s.nodes.at("n1").state == NodeState::up);
  all_leave(s);
  for (const uint64_t step : {5, 6})
    CHECK(all<EndNode>(decide(0, s, StepCommitted{s.generation, step})).empty());
  CHECK(nodes_of(s).size() == 2);
}

TEST_CASE("job: LEAD-1: a supervisor that may be replaced does not end a node") {
  CHECK(waits_for_folder({EndNode{"n1", Code::ok, "removed"}}, true));
  CHECK_FALSE(waits_for_folder({AdmitNode{"n1"}}, false));
}

TEST_CASE("job: a layout of joined nodes grows by whole groups") {
  LayoutRules rules{.trainers_per_node = 2, .shards = 4, .domain_nodes = 2, .domains = 2};
  rules.max_nodes = 8;
  rules.spares = 1;
  CHECK(rules.domains_of(3) == 2);  // the nodes with which the run begins
  CHECK(rules.domains_of(6) == 2);
  CHECK(rules.domains_of(7) == 3);
  CHECK(rules.domains_of(100) == 3);
  CHECK(rules.most_domains() == 3);
}

}  // namespace simplescale::job::test
