// After a loss, failure domains of another size train, and with the configured size once the node is
// back: which size is taken, and which copies of the state move to another cut.
#include <algorithm>

#include "actors/supervisor/decision/newest_state.hpp"
#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/what_if.hpp"
#include "actors/supervisor/ended_agents.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"
#include "transport/protocol/reason.hpp"

using namespace simplescale;
using namespace simplescale::job;
using namespace simplescale::job::test;

namespace {

Layout layout_of(const std::vector<std::vector<std::string>>& domains) {
  return {domains};
}

Decision node_up(State& s, const std::string& node, int32_t pid = 1) {
  decide(0, s, NodeUp{node, pid});
  decide(0, s, PeerCopies{node, {}, s.generation});
  decide(0, s, NodeChecked{node, true, ""});
  return decide(0, s, TrainerUp{trainer_name(node, 0), pid, {1}});
}

/// Two groups of two nodes of one trainer each have committed step 3. Domains may also have these
/// sizes.
State shaped(const std::vector<int>& sizes) {
  State s = make_state({.trainers_per_node = 1,
                        .shards = 2,
                        .domain_nodes = 2,
                        .domains = 2,
                        .max_nodes = 4,
                        .domain_sizes = sizes},
                       {"n0", "n1", "n2", "n3"});
  s.max_steps = 100;
  s.max_restarts = 100;
  for (const char* node : {"n0", "n1", "n2", "n3"}) node_up(s, node);
  REQUIRE(s.layout == layout_of({{"n0", "n1"}, {"n2", "n3"}}));
  decide(0, s, StepCommitted{s.generation, 3});
  return s;
}

/// The same, after n3 was lost.
State without_n3(const std::vector<int>& sizes, Join* join = nullptr) {
  State s = shaped(sizes);
  decide(0, s, NodeLost{"n3", "gone"});
  const Join order = only<Join>(all_idle(s, Steps{2, 3}));
  if (join) *join = order;
  return s;
}

/// All trainers leave the generation after its last step, and hold it in its cut.
Decision all_leave(State& s, const Steps& steps) {
  Decision last;
  const uint32_t cut = s.rules.cut_of(s.layout);
  for (const Place& p : places(s.rules, s.layout))
    last = decide(
        0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, steps), cut)});
  return last;
}

/// A trainer of the generation dies before the first step and comes back with its memory.
Decision fails_at_once(State& s, const std::string& trainer) {
  decide(0, s, TrainerDown{trainer, "out of memory"});
  const std::vector<StateVersion> held = made(newest_joined(s), {s.joined_step});
  all_idle(s, held);
  return back(s, trainer, 0, held);
}

LayoutRules rules_of(int size, int domains, const std::vector<int>& sizes,
                     bool rate_first = false) {
  return {.shards = size,
          .domain_nodes = size,
          .domains = domains,
          .max_nodes = size * domains,
          .domain_sizes = sizes,
          .rate_first = rate_first};
}

/// The size and the number of the domains that so many of all nodes form, "3 x 1".
std::string shape_of(const LayoutRules& rules, int nodes, size_t least = 1,
                     const Layout& current = {}) {
  std::vector<std::string> names;
  for (int node = 0; node < nodes; ++node) names.push_back(node_name(node));
  std::vector<int> sizes = rules.domain_sizes;
  sizes.push_back(rules.domain_nodes);
  const Layout next = choose_layout(rules, sizes, least, current, names);
  return std::to_string(next.domains.size()) + " x " + std::to_string(rules.size_of(next));
}

}  // namespace

TEST_CASE("reshape: 2 groups of 2 nodes that lose one go on as 3 groups of 1 node") {
  State s = shaped({1});
  decide(0, s, NodeLost{"n3", "gone"});
  const Decision d = all_idle(s, Steps{2, 3});
  const Join join = only<Join>(d);
  CHECK(s.layout == layout_of({{"n0"}, {"n1"}, {"n2"}}));
  CHECK(places(s.rules, s.layout)[2].group == 2);
  CHECK(join.source == Source::memory);
  CHECK(join.step == 3);
  // Each trainer takes what it holds out of its own memory.
  CHECK(join.moves == std::vector<Move>{{0, 3, "n0.0", false, {"n0.0", "n1.0"}, 2},
                                        {0, 3, "n2.0", false, {"n2.0"}, 2},
                                        {1, 3, "n1.0", false, {"n0.0", "n1.0", "n2.0"}, 2}});
  CHECK(d.reason.find("without n3: 3 groups of 1 node instead of 2 of 2; ") == 0);
  CHECK(d.reason.ends_with("begins at step 3 from memory, 2 shards move"));
}

TEST_CASE("reshape: where memory forbids a size of 1, they go on as 1 group of 3 nodes") {
  Join join;
  State s = without_n3({3}, &join);
  CHECK(s.layout == layout_of({{"n0", "n1", "n2"}}));
  CHECK(places(s.rules, s.layout)[2].shard == 2);
  CHECK(join.moves == std::vector<Move>{{0, 3, "n0.0", false, {"n0.0", "n1.0"}, 2},
                                        {0, 3, "n2.0", false, {"n2.0"}, 2},
                                        {1, 3, "n1.0", false, {"n0.0", "n1.0", "n2.0"}, 2}});
  CHECK(describe_change(s, s.previous_layout, s.layout) ==
        "without n3: 1 group of 3 nodes instead of 2 of 2");
}

TEST_CASE("reshape: without other sizes, the group that is left trains alone") {
  Join join;
  State s = without_n3({}, &join);
  CHECK(s.layout == layout_of({{"n0", "n1"}}));
  CHECK(join.moves.empty());
  CHECK(describe_change(s, s.previous_layout, s.layout) == "without n2, n3: 1 group instead of 2");
}

TEST_CASE("reshape: a node that returns leads back to 2 groups of 2 nodes, once") {
  for (const int size : {1, 3}) {
    State s = without_n3({size});
    decide(0, s, StepCommitted{s.generation, 4});
    CHECK(all<Leave>(decide(1, s, Tick{})).empty());  // the best that three nodes can form
    CHECK(all<Leave>(node_up(s, "n3", 2)).empty());
    CHECK(only<Leave>(decide(2, s, Tick{})).reason ==
          "enough nodes are up for 2 groups of 2 nodes instead of " +
              std::string(size == 1 ? "3 of 1" : "1 of 3"));
    const Join join = only<Join>(all_leave(s, {3, 4}));
    CHECK(s.layout == layout_of({{"n0", "n1"}, {"n2", "n3"}}));
    CHECK(join.step == 4);
    if (size == 1)
      CHECK(join.moves == std::vector<Move>{{0, 4, "n0.0", false, {"n0.0", "n3.0"}, 1},
                                            {0, 4, "n1.0", false, {"n1.0"}, 1},
                                            {0, 4, "n2.0", false, {"n2.0"}, 1}});
    else
      CHECK(join.moves.size() == 3);  // each of three shards goes to all
    decide(0, s, StepCommitted{s.generation, 5});
    CHECK(all<Leave>(decide(3, s, Tick{})).empty());
    CHECK(all<Join>(decide(3, s, Tick{})).empty());
  }
}

TEST_CASE("reshape: a generation that a shape was chosen for is not left while nothing changes") {
  for (int nodes = 3; nodes < 24; ++nodes)
    for (const int configured : {2, 3, 4, 6})
      for (const bool rate_first : {false, true}) {
        std::vector<int> sizes = {1, 2, 3, 4, 5, 6, 7, 8};
        std::erase(sizes, configured);
        const LayoutRules rules = rules_of(configured, 24 / configured, sizes, rate_first);
        std::vector<std::string> names;
        for (int node = 0; node < nodes; ++node) names.push_back(node_name(node));
        sizes.push_back(configured);
        for (const int before : sizes) {
          const Layout current = assign(rules, before, {}, names);
          const Layout next = choose_layout(rules, sizes, 1, current, names);
          CHECK(choose_layout(rules, sizes, 1, next, names) == next);
        }
      }
}

TEST_CASE("reshape: two groups come first; with rate_first, most nodes") {
  CHECK(shape_of(rules_of(3, 2, {2, 5}), 5) == "2 x 2");
  CHECK(shape_of(rules_of(3, 2, {2, 5}, true), 5) == "1 x 5");
  CHECK(shape_of(rules_of(2, 2, {3}), 3) == "1 x 3");  // no size makes two of three nodes
  CHECK(shape_of(rules_of(2, 2, {1, 4}), 4) == "2 x 2");
  LayoutRules grown = rules_of(2, 2, {5});
  grown.max_nodes = 5;  // a fifth node has joined
  CHECK(shape_of(grown, 5) == "2 x 2");
  grown.rate_first = true;
  CHECK(shape_of(grown, 5) == "1 x 5");
  CHECK(shape_of(rules_of(2, 2, {1}), 2) == "1 x 2");  // both nodes train without a move
  CHECK(shape_of(rules_of(2, 2, {1}), 1) == "1 x 1");
}

TEST_CASE("reshape: another size trains at least a tenth more nodes, since all state has to move") {
  const LayoutRules rules = rules_of(5, 4, {1});
  CHECK(shape_of(rules, 16) == "3 x 5");
  CHECK(shape_of(rules, 17) == "17 x 1");
  // The current size is kept against another one, not against the configured one.
  std::vector<std::string> names;
  for (int node = 0; node < 19; ++node) names.push_back(node_name(node));
  CHECK(shape_of(rules, 16, 1, assign(rules, 1, {}, names)) == "3 x 5");
  CHECK(shape_of(rules, 14, 1, assign(rules, 1, {}, names)) == "14 x 1");
  const LayoutRules three = rules_of(10, 2, {1, 9});
  CHECK(shape_of(three, 19) == "19 x 1");
  CHECK(shape_of(three, 19, 1, assign(three, 9, {}, names)) == "2 x 9");
  CHECK(shape_of(rules_of(10, 2, {9}, true), 11) == "1 x 10");  // 9 are fewer
}

TEST_CASE("reshape: fewer domains than training needs are no choice, whatever their size") {
  CHECK(shape_of(rules_of(2, 2, {1, 3}, true), 3, 2) == "3 x 1");
  CHECK(shape_of(rules_of(2, 2, {3}, true), 3, 2) == "1 x 2");  // the caller waits
  State s = shaped({3});
  s.rules.min_domains = 2;
  decide(0, s, NodeLost{"n3", "gone"});
  CHECK(all<Join>(all_idle(s, Steps{2, 3})).empty());
  CHECK(s.phase == Phase::recovering);
  CHECK_FALSE(can_spare(shaped({3}), "n3") == can_spare(s, "n2"));
}

TEST_CASE("reshape: JOB-3: copies of two cuts are not one state") {
  const std::vector<AvailableCopy> mixed = {{"n0.0", 0, 5, false, 2},
                                            {"n1.0", 1, 5, false, 3},
                                            {"n2.0", 0, 4, false, 2},
                                            {"n3.0", 1, 4, false, 2}};
  CHECK(newest_complete(mixed) == CompleteStep{4, 2});
  std::vector<AvailableCopy> both = mixed;
  both.push_back({"n0.0", 1, 5, false, 2});
  for (const uint32_t shard : {0U, 2U}) both.push_back({"n1.0", shard, 5, false, 3});
  CHECK(newest_complete(both) == CompleteStep{5, 2});
  CHECK(newest_complete(both, 3) == CompleteStep{5, 3});
  CHECK(newest_complete(both, 7) == CompleteStep{5, 2});
  // Nor does a copy of another cut stand in for one that is missing.
  const std::vector<Place> members = {{"n0.0", 0, 0}, {"n1.0", 0, 1}};
  CHECK(moves_for(members, 2, mixed, {5, 2}) == std::vector<Move>{});
}

TEST_CASE("reshape: a peer's copy goes to all places, and a trainer that has none only sends") {
  const std::vector<Place> members = {{"n0.0", 0, 0}, {"n1.0", 1, 0}};
  const std::vector<AvailableCopy> copies = {{"n1.0", 0, 5, true, 2}, {"n2.0", 1, 5, false, 2}};
  CHECK(moves_for(members, 1, copies, {5, 2}) ==
        std::vector<Move>{{0, 5, "n1.0", true, {"n0.0", "n1.0"}, 2},
                          {1, 5, "n2.0", false, {"n0.0", "n1.0"}, 2}});
}

TEST_CASE("reshape: JOB-1: a loss while state moves to another cut begins from the old one") {
  State s = without_n3({3});
  const uint64_t generation = s.generation;
  const auto report = [&](const char* trainer, std::vector<StateCopy> held) {
    return decide(0, s, TrainerIdle{trainer, generation, std::move(held), Fault::failed, 4});
  };
  // n0 and n2 hold both cuts of step 3; n1 has not got its new shard.
  report("n0.0", {{0, 3, 1, 2}, {0, 3, 1, 3}});
  s.cycles = 0;  // as if a step had been committed before
  all_answer(s);
  report("n1.0", {{1, 2, 1, 2}, {1, 3, 1, 2}});
  Decision d = report("n2.0", {{0, 3, 1, 2}, {2, 3, 1, 3}});
  if (all<Join>(d).empty()) d = all_answer(s);
  const Join join = only<Join>(d);
  CHECK(s.layout == layout_of({{"n0", "n1", "n2"}}));
  CHECK(join.step == 3);
  REQUIRE(join.moves.size() == 3);
  for (const Move& move : join.moves) CHECK(move.shards == 2);

  SUBCASE("n1 has its new shard: it is complete, and nothing moves") {
    State t = s;
    t.cycles = 0;
    for (auto& [name, trainer] : t.trainers)
      if (trainer.state == TrainerState::training)
        trainer.held.push_back({static_cast<uint32_t>(name[1] - '0'), 3, 1, 3});
    for (auto& [name, trainer] : t.trainers)
      if (trainer.state == TrainerState::training) trainer.state = TrainerState::idle;
    CHECK(newest_state(t, 3).shards == 3);
    CHECK(newest_state(t, 2).shards == 2);
    CHECK(newest_state(t, 3).step == 3);
  }
}

TEST_CASE("reshape: a trainer that may hold a newer step of the new cut is waited for") {
  State s = without_n3({3});
  decide(0, s, StepCommitted{s.generation, 4});
  const uint64_t generation = s.generation;
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_answer(s);
  for (const char* trainer : {"n0.0", "n2.0"})
    decide(0, s,
           TrainerIdle{trainer, generation,
                       of(static_cast<uint32_t>(trainer[1] - '0'), made(generation, {4, 5}), 3)});
  const Beginning older = newest_state(s);
  CHECK(older.source == Source::initialize);  // n1.0 has reported shard 1 of 2 alone
  CHECK(memory_may_be_newer(s, older));
  CHECK(only<Join>(back(s, "n1.0", 1, made(generation, {4, 5}))).step == 5);
}

TEST_CASE("reshape: JOB-1: no committed step is undone for groups of another size, at first") {
  // A network cut n0 off: its supervisor began again with 1 group of 1 node and initial values.
  State s = shaped({1, 3});
  for (const char* name : {"n1", "n2", "n3"}) decide(0, s, NodeLost{name, "silent"});
  const int64_t waited = s.join_timeout_ms + 10'000;
  CHECK(all<Join>(all_idle(s, Steps{2, 3}, 5'000)).empty());
  CHECK(all<Join>(decide(s.join_timeout_ms - 1, s, Tick{})).empty());
  State at_disk = s;
  decide(waited, s, Tick{});
  CHECK(over(s.phase));  // there is no checkpoint: never again from step 0
  at_disk.has_checkpoint = at_disk.had_checkpoint = true;
  at_disk.checkpoint_step = 2;
  const Join join = only<Join>(decide(waited, at_disk, Tick{}));
  CHECK(join.source == Source::checkpoint);
  CHECK(at_disk.layout == layout_of({{"n0"}}));
}

TEST_CASE("reshape: the first step was not committed if a trainer has not made it") {
  State s = shaped({1});
  s.committed_step = 0;
  decide(0, s, NodeLost{"n3", {"silent"}});
  const auto leaves = [&](const char* name, uint32_t shard, const Steps& steps) {
    decide(0, s, TrainerIdle{name, s.generation - 1, of(shard, made(s.generation - 1, steps))});
  };
  leaves("n0.0", 0, {0, 1});
  CHECK(newest_made(s) == 1);
  leaves("n1.0", 1, {0});
  CHECK(newest_made(s) == 0);
}

TEST_CASE("reshape: a state that is certainly gone is not waited for") {
  // One group of four nodes; the checkpoint of step 2 is on the disk.
  const Reason ended = process_ended();
  const auto lose = [](State& s, const std::string& node, const Reason& why) {
    decide(0, s, NodeLost{node, why});
    return all_idle(s, Steps{2, 3});
  };
  State s = make_state({.shards = 4, .domain_nodes = 4, .max_nodes = 4, .domain_sizes = {1, 2}},
                       {"n0", "n1", "n2", "n3"});
  s.max_steps = 100;
  s.max_restarts = 100;
  s.has_checkpoint = s.had_checkpoint = true;
  s.checkpoint_step = 2;
  for (const char* node : {"n0", "n1", "n2", "n3"}) node_up(s, node);
  decide(0, s, StepCommitted{s.generation, 3});
  REQUIRE(s.layout == layout_of({{"n0", "n1", "n2", "n3"}}));
  SUBCASE("the agent's process has ended") {
    const Join join = only<Join>(lose(s, "n3", ended));
    CHECK(join.source == Source::checkpoint);
    CHECK(s.layout == layout_of({{"n0"}, {"n1"}, {"n2"}}));
    CHECK(decode(encode({.job = s}))->job.nodes.at("n3").ended);
    decide(0, s, NodeUp{"n3", 2});
    CHECK_FALSE(s.nodes.at("n3").ended);  // of the agent that reports now
  }
  SUBCASE("that becomes known only after the connection broke") {
    CHECK(all<Join>(lose(s, "n3", connection_lost("reset"))).empty());
    CHECK(only<Join>(decide(100, s, NodeLost{"n3", ended})).source == Source::checkpoint);
    CHECK(s.nodes.at("n3").state == NodeState::lost);
    CHECK(s.nodes.at("n3").failures_ms.size() == 1);
  }
  SUBCASE("a node that cannot be reached may come back with its memory") {
    CHECK(all<Join>(lose(s, "n3", connection_lost("reset"))).empty());
    CHECK(all<Join>(decide(s.join_timeout_ms - 1, s, Tick{})).empty());
    CHECK(all<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).size() == 1);
  }
  SUBCASE("two nodes: one that cannot be reached is enough to wait") {
    lose(s, "n2", {"silent"});
    CHECK(all<Join>(decide(10, s, NodeLost{"n3", ended})).empty());
    CHECK(all<Join>(decide(20, s, NodeLost{"n2", ended})).size() == 1);
  }
  SUBCASE("a node that may hold an older state than the newest, but a newer one than the disk") {
    decide(0, s, StepCommitted{s.generation, 8});
    decide(0, s, NodeLost{"n3", {"silent"}});
    REQUIRE(all<Join>(all_idle(s, Steps{8, 9})).empty());
    s.committed_step = 20;  // the others went on, and have lost a newer state since
    CHECK(size_waits(s, layout_of({{"n0", "n1"}}), false));
    s.checkpoint_step = 9;
    CHECK_FALSE(size_waits(s, layout_of({{"n0", "n1"}}), false));
  }
  SUBCASE("a node that has missed a committed step is not waited for") {
    REQUIRE(all<Join>(lose(s, "n3", {"silent"})).empty());
    const int64_t now = s.join_timeout_ms + 1;
    REQUIRE(all<Join>(decide(now, s, Tick{})).size() == 1);
    decide(now, s, StepCommitted{s.generation, 8});
    decide(now, s, CheckpointSaved{8, s.generation});
    decide(now, s, StepCommitted{s.generation, 9});
    s.rules.domain_sizes = {2};  // two of the three nodes then form one group
    s.rules.rate_first = true;
    s.layout = layout_of({{"n0", "n1"}});
    State late = s;
    late.nodes.at("n3").failed_at_step = 9;
    CHECK(size_waits(late, layout_of({{"n0", "n2"}}), false));
    CHECK_FALSE(size_waits(s, layout_of({{"n0", "n2"}}), false));
  }
}

TEST_CASE(
    "reshape: a lost node's agent has ended if this host's kernel no longer knows its process") {
  State s = shaped({1});
  AgentRegistry agents;
  for (const char* name : {"n1", "n2", "n3"}) agents[name] = {"host", 1, "address", false, 11};
  for (const char* name : {"n2", "n3"}) decide(0, s, NodeLost{name, "silent"});
  const auto with = [&](ProcessState n3) {
    std::string names;
    for (const NodeLost& lost :
         ended_agents(s, agents, [&](pid_t pid) { return pid == 13 ? n3 : ProcessState::gone; })) {
      CHECK(lost.reason.kind == ReasonKind::process_ended);
      names += lost.node;
    }
    return names;
  };
  agents["n3"].visible_pid = 13;
  CHECK(with(ProcessState::runs) == "n2");  // n1 is up
  CHECK(with(ProcessState::stopped) == "n2");
  CHECK(with(ProcessState::gone) == "n2n3");
  decide(0, s, NodeLost{"n2", process_ended()});
  CHECK(with(ProcessState::gone) == "n3");
  agents["n3"].visible_pid = 0;  // on another host
  CHECK(with(ProcessState::gone) == "");
  agents["n3"].visible_pid = 13;
  agents["n3"].pid = 2;  // another agent by this name has reported, and this decision is to come
  CHECK(with(ProcessState::gone) == "");
}

TEST_CASE("reshape: a size whose generations commit no step does not end the run") {
  State s = without_n3({1});
  REQUIRE(s.rules.size_of(s.layout) == 1);
  CHECK(only<Join>(fails_at_once(s, "n2.0")).step == 3);
  CHECK(s.layout == layout_of({{"n0", "n1"}}));  // the second in a row
  decide(0, s, StepCommitted{s.generation, 4});
  CHECK(s.proven_size == 2);
  // The nodes try once more, and twice in a row.
  CHECK(all<Leave>(decide(1, s, Tick{})).size() == 1);
  all_leave(s, {3, 4});
  REQUIRE(s.rules.size_of(s.layout) == 1);
  fails_at_once(s, "n2.0");
  REQUIRE(s.rules.size_of(s.layout) == 1);
  fails_at_once(s, "n2.0");
  CHECK(s.layout == layout_of({{"n0", "n1"}}));
  decide(0, s, StepCommitted{s.generation, 5});
  CHECK(all<Leave>(decide(2, s, Tick{})).empty());
  CHECK(s.failed_sizes == std::map<int, int>{{1, 2}});
}

TEST_CASE("reshape: a size that has committed a step is kept after two failures") {
  State s = without_n3({1});
  decide(0, s, StepCommitted{s.generation, 3});
  CHECK(s.proven_size == 1);
  for (int i = 0; i < 3; ++i) fails_at_once(s, "n2.0");
  CHECK(s.cycles == 3);
  CHECK(s.layout == layout_of({{"n0"}, {"n1"}, {"n2"}}));
  decide(0, s, StepCommitted{s.generation, 5});
  CHECK(s.failed_sizes.empty());
}

TEST_CASE("reshape: a run that begins waits for the configured layout") {
  State s = make_state({.shards = 2, .domain_nodes = 2, .domains = 2, .domain_sizes = {1}},
                       {"n0", "n1", "n2", "n3"});
  s.max_steps = 10;
  for (const char* node : {"n0", "n1", "n2"}) CHECK(all<Join>(node_up(s, node)).empty());
  SUBCASE("all nodes come") {
    CHECK(all<Join>(node_up(s, "n3")).size() == 1);
    CHECK(s.layout == layout_of({{"n0", "n1"}, {"n2", "n3"}}));
  }
  SUBCASE("one does not: the others begin with groups of the configured size") {
    CHECK(all<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).size() == 1);
    CHECK(s.layout == layout_of({{"n0", "n1"}}));
    decide(s.join_timeout_ms + 2, s, StepCommitted{s.generation, 1});
    CHECK(all<Leave>(decide(s.join_timeout_ms + 3, s, Tick{})).size() == 1);
  }
  SUBCASE("one does not, and there is a checkpoint: the others form the best shape") {
    s.has_checkpoint = s.had_checkpoint = true;
    s.checkpoint_step = 4;
    CHECK(all<Join>(decide(s.join_timeout_ms + 1, s, Tick{})).size() == 1);
    CHECK(s.layout == layout_of({{"n0"}, {"n1"}, {"n2"}}));
  }
}

TEST_CASE("reshape: JOB-1: a run that gives up saves the state of its cut") {
  SUBCASE("its trainers do, in the shape in which they train") {
    State s = without_n3({1});
    decide(0, s, StepCommitted{s.generation, 4});
    s.give_up_after_cycles = 0;
    decide(0, s, TrainerDown{"n2.0", "signal 9"});
    REQUIRE(s.giving_up);
    const uint64_t generation = newest_joined(s);
    all_idle(s, Steps{3, 4});
    const Join save = only<Join>(back(s, "n2.0", 0, made(generation, {3, 4})));
    CHECK(save.save_only);
    CHECK(save.moves.empty());
    CHECK(s.layout.domains.size() == 3);
  }
  SUBCASE("an agent does, whose node holds all shards") {
    State s = without_n3({3});
    const uint64_t generation = s.generation;
    decide(0, s, StepCommitted{generation, 4});
    decide(0, s, PeerCopies{"n0", {{1, 4, generation, 3}, {2, 4, generation, 3}}});
    decide(0, s, StopRequested{});
    decide(0, s, NodeLost{"n1", "gone"});
    decide(0, s, NodeLost{"n2", "gone"});
    decide(10'000, s, PeerCopies{"n0", s.nodes.at("n0").peer, s.generation});
    const Join save = only<Join>(
        decide(10'000, s, TrainerIdle{"n0.0", generation, of(0, made(generation, {3, 4}), 3)}));
    CHECK(save.by_agents);
    CHECK(save.moves == std::vector<Move>{{0, 4, "n0", true, {}, 3},
                                          {1, 4, "n0", true, {}, 3},
                                          {2, 4, "n0", true, {}, 3}});
  }
}

TEST_CASE("reshape: `plan` tells which groups a lost node would leave") {
  State s = shaped({1});
  CHECK(what_if(s, "partition_node", "n3", "") ==
        "If node n3 is cut off from the network, the nodes that are left form 3 groups of 1 node "
        "instead of 2 of 2, and training goes on with step 4: no step is lost.");
  s = shaped({});
  CHECK(what_if(s, "partition_node", "n3", "") ==
        "If node n3 is cut off from the network, the other group takes over its samples (1 group "
        "instead of 2), and training goes on with step 4: no step is lost.");
}

TEST_CASE("reshape: status tells the groups that train if they are not the configured ones") {
  CHECK(other_shape(shaped({1})) == "");
  CHECK(other_shape(make_state({}, {})) == "");
  CHECK(other_shape(without_n3({1})) == "3 groups of 1 node (configured: 2 of 2)");
  CHECK(other_shape(without_n3({3})) == "1 group of 3 nodes (configured: 2 of 2)");
  CHECK(other_shape(without_n3({})) == "1 group of 2 nodes (configured: 2 of 2)");
  State whole = shaped({});  // two groups of one trainer on each node
  whole.rules = {.trainers_per_node = 2, .domains = 4};
  whole.layout = layout_of({{"n0"}, {"n1"}, {"n2"}});
  CHECK(other_shape(whole) == "6 groups (configured: 8)");
}

TEST_CASE("reshape: a supervisor's state may have any allowed size, the same for all domains") {
  SupervisorState state;
  state.job = without_n3({1});
  const auto back = decode(encode(state));
  REQUIRE(back.ok());
  CHECK(back->job.layout == state.job.layout);
  CHECK(back->job.rules == state.job.rules);
  CHECK(back->job.trainers.at("n0.0").held == state.job.trainers.at("n0.0").held);
  CHECK(back->job.failed_sizes == state.job.failed_sizes);
  for (const auto& domains : std::vector<std::vector<std::vector<std::string>>>{
           {{"n0"}, {"n1", "n2"}}, {{"n0", "n1", "n2"}}}) {
    state.job.layout.domains = domains;
    CHECK_FALSE(decode(encode(state)).ok());
  }
  state.job = shaped({1});
  CHECK(decode(encode(state)).ok());
  state.job.rules.trainers_per_node = 0;
  CHECK_FALSE(decode(encode(state)).ok());
}
