// Fences, stale events, trainers that do not leave a generation, and a change of the supervisor.
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

TEST_CASE("job: GEN-1: an event that carries an older generation has no effect") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  const State before = s;
  for (const Event& event : std::vector<Event>{
           StepCommitted{1, 9}, TrainerIdle{"n0.0", 1, of(0, made(1, {9})), Fault::failed},
           TrainerFinished{"n0.0", 1, 10}, TrainerReady{"n0.0", 1}}) {
    const Decision d = decide(0, s, event);
    CHECK(d.actions.empty());
    CHECK(s.phase == before.phase);
    CHECK(s.generation == before.generation);
    CHECK(s.committed_step == before.committed_step);
  }
}

TEST_CASE("job: GEN-1: an answer to an older fence does not count for the last one") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  back(s, "n1.0", 0, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.0", 1, of(0, made(1, {3}))});
  CHECK(s.trainers.at("n0.0").state == TrainerState::draining);
}

TEST_CASE("job: GEN-2: a successor does not begin the generation that its predecessor fenced") {
  State s = training(2);
  decide(0, s, TrainerDown{"n1.0", "signal 9"});
  all_idle(s, Steps{3});
  s.generation_floor = 100;  // another supervisor takes over
  CHECK(only<Join>(back(s, "n1.0", 0, Steps{3})).generation > 100);
}

TEST_CASE("job: GEN-2: a supervisor's numbers are greater than those of every term before it") {
  // control/generation lags behind: it says 7, and the records name 150. No supervisor writes.
  uint64_t claimed = 7, above = generation_floor_of(1, claimed, 150);
  CHECK(above == 150);
  for (uint64_t term = 2; term < 6; ++term) {
    claimed = claimed_generation_floor(term, claimed, 7);
    const uint64_t before = std::exchange(above, generation_floor_of(term, claimed, 150));
    CHECK(above >= before + unknown_generations);
  }
  CHECK(generation_floor_of(6, 0, 150) >= above + unknown_generations);  // the term file is damaged

  // Term 3's supervisor was a standby, whose state alone knows 103; files lag behind.
  claimed = claimed_generation_floor(2, 0, 1);
  claimed = claimed_generation_floor(3, claimed, 103);
  above = generation_floor_of(3, claimed, 103);
  claimed = claimed_generation_floor(4, claimed, 1);
  CHECK(generation_floor_of(4, claimed, 1) >= above + unknown_generations);
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
    decide(0, s, TrainerIdle{p.trainer, s.generation});
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).generation > second);
}

TEST_CASE("job: a trainer that comes back in an old generation does not end the current one") {
  State s = training(2);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  CHECK(all<Fence>(decide(0, s, TrainerUp{"n1.0", 1, {1}, of(0, made(1, {3})), 1})).empty());
  // A trainer that should train in the current one does.
  CHECK(all<Fence>(decide(0, s, TrainerUp{"n0.0", 1, {1}, of(0, made(1, {3})), 1})).size() == 1);
}

TEST_CASE("job: GEN-1: a trainer that came back is idle once it has left its old generation") {
  State s = with_one_back_in_an_older_generation();
  // Meanwhile the generation changes without a fence.
  decide(0, s, DrainRequested{"n2", true, "me"});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {4, 5}))});
  decide(0, s, TrainerIdle{"n1.0", 1, of(0, made(1, {3}))});
  CHECK(s.trainers.at("n1.0").state == TrainerState::idle);
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

TEST_CASE(
    "job: JOB-4: a trainer that does not leave an old generation is killed when others wait") {
  State s = with_one_back_in_an_older_generation();
  decide(0, s, TrainerUp{"n1.1", 1, {1}, of(0, made(1, {3})), 0});
  CHECK(all<KillTrainer>(decide(s.fence_timeout_ms + 1, s, Tick{})).empty());  // no trainer waits
  const int64_t since = 2 * s.fence_timeout_ms;
  CHECK(all<Leave>(decide(since, s, DrainRequested{"n2", true, "me"})).size() == 1);
  CHECK(all<KillTrainer>(decide(since + s.fence_timeout_ms, s, Tick{})).empty());
  CHECK(only<KillTrainer>(decide(since + s.fence_timeout_ms + 1, s, Tick{})).trainer == "n1.0");
  CHECK(all<KillTrainer>(decide(since + s.fence_timeout_ms + 2, s, Tick{})).empty());
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

TEST_CASE("job: JOB-4: in a generation that began without a failure, restoring has its deadline") {
  State s = training(2);
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerReady{p.trainer, s.generation});
  decide(0, s, PauseRequested{true, "me"});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {3, 4}))});
  const uint64_t generation = only<Join>(decide(0, s, PauseRequested{false, "me"})).generation;
  CHECK(only<Fence>(decide(s.join_timeout_ms + 1, s, Tick{})).generation == generation + 1);
}

TEST_CASE("job: a supervisor that took over adopts trainers without a fence") {
  const State before = training(2);
  const uint64_t known = before.generation;
  State s = resumed(before, 202, 0);
  for (const auto& node : s.node_order) CHECK(decide(0, s, NodeUp{node, 1}).actions.empty());
  for (const Place& p : places(s.rules, s.layout))
    CHECK(decide(0, s, TrainerUp{p.trainer, 1, {1}, of(p.shard, made(known, {2, 3})), known})
              .actions.empty());
  CHECK(s.phase == Phase::training);
  // A supervisor without the state of the last one ends the unknown generation.
  State fresh = job_of(2);
  decide(0, fresh, NodeUp{"n0", 1});
  const Decision d = decide(0, fresh, TrainerUp{"n0.0", 1, {1}, of(0, made(41, {2, 3})), 41});
  CHECK(only<Fence>(d).generation == 42);
}

TEST_CASE("job: JOB-4, a generation that a lost decision has ended is not waited for") {
  // A supervisor on a full disk fenced the generation, and died with its standby. Its successor knows
  // the state before that, and the trainers answer the fence.
  State s = training(2);
  s.generation_floor = 500;
  for (const std::string& node : s.node_order) decide(0, s, PeerCopies{node, {}, s.generation});
  size_t fences = 0, joins = 0;
  for (const Place& p : places(s.rules, s.layout)) {
    const Decision up = decide(
        0, s, TrainerUp{p.trainer, 1, {1}, of(p.shard, made(s.generation, {2, 3})), s.generation});
    CHECK(up.actions.empty());
  }
  for (const Place& p : places(s.rules, s.layout)) {
    const Decision d = decide(0, s, TrainerIdle{p.trainer, 102, of(p.shard, made(1, {2, 3}))});
    fences += all<Fence>(d).size();
    joins += all<Join>(d).size();
  }
  CHECK(fences == 1);
  for (const std::string& node : s.node_order)  // the answers to that fence
    joins += all<Join>(decide(0, s, PeerCopies{node, {}, s.generation})).size();
  CHECK(joins == 1);
  CHECK(s.generation > 500);
  CHECK(s.joined_step == 3);
}

TEST_CASE("job: GEN-2: a fence has a greater number than the one that a trainer has answered") {
  // The predecessor made more fences of which no file tells than a successor skips (the limit of
  // GEN-2). Trainers refuse lower numbers.
  State s = resumed(training(2), 102, 0);
  CHECK(only<Fence>(decide(0, s, TrainerIdle{"n0.0", 150, of(0, made(1, {2, 3}))})).generation >
        151);
}

TEST_CASE("job: JOB-4: trainers leave a generation whose beginning is a lost decision") {
  // The folder hung on the supervisor's host, so its state page lagged behind the records, which
  // named generation 2. The successor took that for its own generation: the trainers trained on in
  // it, but no step counted and no checkpoint was published until the run failed.
  State s = resumed(training(2), 202, 0);
  const uint64_t known = s.generation;
  CHECK(s.generation_floor == 202);
  const Decision d =
      decide(0, s, TrainerUp{"n0.0", 1, {1}, of(0, made(known + 1, {2, 3})), known + 1});
  CHECK(only<Fence>(d).generation > 202);
}

TEST_CASE("job: GEN-1: a successor with an old state takes a trainer's word for its generation") {
  State s = resumed(training(2), 202, 0);
  const uint64_t known = s.generation, lost = known + 1;  // the page does not tell of its beginning
  for (const char* trainer : {"n0.0", "n1.0"})
    decide(0, s, TrainerUp{trainer, 1, {1}, of(0, made(lost, {2, 3})), lost});
  decide(0, s,
         TrainerIdle{"n1.0", known, of(0, made(known, {2}))});  // sent before it joined that one
  CHECK(s.trainers.at("n1.0").state == TrainerState::draining);
  decide(0, s, TrainerIdle{"n1.0", s.generation - 1, of(0, made(lost, {2, 3}))});
  CHECK(s.trainers.at("n1.0").state == TrainerState::idle);
}

TEST_CASE("job: JOB-1, a successor that has made a fence waits for the answers to that one") {
  // Its predecessor had begun generations of which its state page did not tell. An agent answered
  // the old fence; what it said of a dead trainer's memory was too old for the new one.
  State s = resumed(training(2), 102, 0);
  for (auto& [name, node] : s.nodes) node.answered = 0;  // as when a state is decoded
  const uint64_t old = s.generation;
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  REQUIRE(s.generation > 102);
  back(s, "n0.0", 0, made(1, {2, 3}));
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation - 1, of(p.shard, made(1, {2, 3}))});
  size_t joins = 0;
  for (const std::string& node : s.node_order)
    joins += all<Join>(decide(0, s, PeerCopies{node, {}, old})).size();
  CHECK(joins == 0);
  for (const std::string& node : s.node_order)
    joins += all<Join>(decide(0, s, PeerCopies{node, {}, s.generation})).size();
  CHECK(joins == 1);
}

TEST_CASE("job: JOB-1, a successor hears every agent before it begins a generation") {
  // Its predecessor began one, made steps, and died with that decision on a full disk.
  State s = training(2);
  decide(0, s, NodeLost{"n1", "gone"});
  for (auto& [name, node] : s.nodes) node.answered = 0;  // as when a state is decoded
  const int64_t later = s.join_timeout_ms + 1;           // the predecessor had waited for long
  s = resumed(s, 100, later);
  size_t joins = 0;
  for (const Place& p : places(s.rules, s.layout))
    if (node_of(p.trainer) == "n0")
      joins += all<Join>(decide(later, s,
                                TrainerIdle{p.trainer, s.generation, of(p.shard, made(1, {2, 3}))}))
                   .size();
  CHECK(joins == 0);
  CHECK(only<Join>(decide(later, s, PeerCopies{"n0", {}, s.generation})).step == 3);
}

TEST_CASE("job: a restarted agent counts as lost and back") {
  State s = training(2);
  const Decision d = decide(0, s, NodeUp{"n1", 99});
  CHECK(all<Fence>(d).size() == 1);
  CHECK(all<CheckNode>(d).size() == 1);
}

TEST_CASE("job: a supervisor without a state ends an unknown generation once") {
  State s = job_of(4);
  size_t fences = 0;
  for (const auto& node : s.node_order) {
    decide(0, s, NodeUp{node, 1});
    for (int slot = 0; slot < 2; ++slot)
      fences +=
          all<Fence>(
              decide(0, s, TrainerUp{trainer_name(node, slot), 1, {1}, of(0, made(41, {3})), 41}))
              .size();
  }
  CHECK(fences == 1);
  CHECK(s.generation == 42);
}

namespace {
/// n0, n1 and the spare n2 were paused; then n0.0 died, and its replacements die before they report.
State paused_without_one(int64_t now) {
  State s = training(2, 1);
  decide(0, s, PauseRequested{true, "me"});
  for (const Place& p : places(s.rules, s.layout))
    decide(0, s, TrainerIdle{p.trainer, s.generation, of(p.shard, made(s.generation, {4}))});
  decide(0, s, TrainerDown{"n0.0", "signal 9"});
  decide(0, s, TrainerIdle{"n0.0", s.generation, of(0, made(s.generation, {4}))});
  for (int i = 0; i < 3; ++i) decide(now, s, TrainerDown{"n0.0", "signal 9"});
  return s;
}
}  // namespace

TEST_CASE("job: JOB-4: a paused run waits for no trainer; a resumed run not for ever") {
  const int64_t late = 3'600'000;
  State s = paused_without_one(late);
  CHECK(decide(late, s, Tick{}).actions.empty());
  CHECK(s.nodes.at("n0").state == NodeState::up);
  CHECK(all<Join>(decide(late, s, PauseRequested{false, "me"})).empty());
  CHECK(all<Join>(decide(late + s.restart_timeout_ms, s, Tick{})).empty());
  const Decision without = decide(late + s.restart_timeout_ms + 1, s, Tick{});
  CHECK(all<CheckNode>(without).size() == 1);
  CHECK(only<Join>(without).step == 4);
  CHECK(nodes_of(s) == std::vector<std::string>{"n2", "n1"});
}

TEST_CASE("job: a node that starts a dead trainer no more is drained") {
  State s = paused_without_one(0);
  decide(0, s, TrainerDown{"n0.0", {"it ended 6 times within 60 s"}, false});
  CHECK(s.nodes.at("n0").state == NodeState::drained);
  CHECK(only<Join>(decide(0, s, PauseRequested{false, "me"})).step == 4);
}

TEST_CASE(
    "job: a dead trainer is waited for from the end of the step on, however long that takes") {
  State s = training(3);
  decide(0, s, DrainRequested{"n0", true, "maintenance"});
  const auto leaves = [&s](const char* who, int64_t now) {
    return decide(now, s, TrainerIdle{who, s.generation, of(0, made(s.generation, {4}))});
  };
  leaves("n1.0", 1);
  decide(1, s, TrainerDown{"n1.0", "signal 9"});
  const int64_t end = 2 * s.restart_timeout_ms;
  decide(end - 1, s, Tick{});
  CHECK(s.nodes.at("n1").state == NodeState::up);
  for (const char* who : {"n0.0", "n0.1", "n1.1", "n2.0", "n2.1"}) leaves(who, end);
  CHECK(all<Join>(decide(end + 1, s, Tick{})).empty());
  CHECK(s.nodes.at("n1").state == NodeState::up);
  decide(end + s.restart_timeout_ms + 1, s, Tick{});
  CHECK(s.nodes.at("n1").state == NodeState::suspect);
}

}  // namespace simplescale::job::test
