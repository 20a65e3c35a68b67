// Replicas that differ, damaged copies, and checkpoints that cannot be used.
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

TEST_CASE("job: a step that replicas differ in is undone and made again") {
  State s = training(2);
  Decision d = decide(0, s,
                      TrainerIdle{"n0.0", 1, of(0, made(1, {2, 3})), Fault::mismatch, 3, "",
                                  "shard 0 of step 3 differs"});
  CHECK(all<Fence>(d).size() == 1);
  CHECK(committed_of(s, 3, 1) == 2);  // JOB-2: it is recorded, and no generation has begun since
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
  decide(0, s, TrainerIdle{"n0.0", 1, of(0, made(1, {2, 3})), Fault::mismatch, 3, "", "differs"});
  all_idle(s, Steps{2, 3});
  for (const std::string& name : names(s)) decide(0, s, TrainerReady{name, s.generation});
  decide(0, s,
         TrainerIdle{"n0.0", s.generation, of(0, made(s.generation, {3, 4})), Fault::mismatch, 4,
                     "", "differs"});
  // Step 3 was made again and compared.
  CHECK(only<Join>(all_idle(s, Steps{3, 4})).step == 3);
}

TEST_CASE("job: a mismatch that was handled is not handled again") {
  State s = training(3);
  const TrainerIdle mismatch{"n0.0", 1,  of(0, made(1, {2, 3})), Fault::mismatch,
                             3,      "", "shard 0 differs"};
  decide(0, s, mismatch);
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(only<Join>(all_idle(s, Steps{2, 3})).step == 2);
  const size_t suspect_steps = s.suspect_steps.size();
  decide(0, s, StepCommitted{s.generation, 4});
  decide(0, s, NodeUp{"n1", 1});
  decide(0, s, TrainerUp{"n1.0", 1, {1}, of(0, made(1, {2, 3})), 1});
  TrainerIdle late = mismatch;
  late.trainer = "n1.0";
  decide(0, s, late);
  CHECK(s.trainers.at("n1.0").state == TrainerState::idle);
  CHECK(s.suspect_steps.size() == suspect_steps);
}

TEST_CASE("job: a damaged copy is not used again") {
  State s = training(2, 1);
  decide(0, s, NodeLost{"n0", "gone"});
  all_idle(s, Steps{2, 3});
  Decision d = decide(
      0, s, TrainerIdle{"n2.0", s.generation, {}, Fault::bad_copy, 3, "n1.0", "hash differs"});
  CHECK(all<Fence>(d).size() == 1);
  all_answer(s);
  for (const auto& [name, shard, steps] : {std::tuple<const char*, uint32_t, Steps>{"n1.0", 0, {2}},
                                           {"n1.1", 1, {2, 3}},
                                           {"n2.1", 1, {}}})
    d = decide(0, s, TrainerIdle{name, s.generation - 1, of(shard, made(1, steps))});
  CHECK(only<Join>(d).step == 2);
}

namespace {

/// The generation cannot begin because of what `suspect` has of step 3; `reporter`, which lacks it,
/// and n2.1 say so. All others report again that they hold steps 2 and 3.
Join after_bad_copy(State& s, const std::string& reporter, const std::string& suspect) {
  TrainerIdle bad{reporter, s.generation, {}, Fault::bad_copy, 3, suspect, "it is not there"};
  decide(0, s, bad);
  bad.trainer = "n2.1";
  bad.held = of(1, made(1, {2, 3}));
  decide(0, s, bad);
  const std::vector<StateVersion> held = made(1, {2, 3});
  return only<Join>(all_idle(s, held));
}

/// Three nodes train, and one is a spare. n0 is lost, and n1.0 or n2.0 has to send shard 0 to n3.0.
State with_one_lost() {
  State s = training(3, 1);
  s.max_restarts = 1'000;
  decide(0, s, NodeLost{"n0", "gone"});
  const std::vector<StateVersion> held = made(1, {2, 3});
  REQUIRE(only<Join>(all_idle(s, held)).moves.front().source == "n1.0");
  return s;
}

}  // namespace

TEST_CASE("job: JOB-4, a copy that fails again and again is replaced by a replica's") {
  State s = with_one_lost();
  std::string source = "n1.0";
  int tries = 0;
  for (; source == "n1.0"; ++tries) {
    REQUIRE(tries < 5);
    const Join join = after_bad_copy(s, "n3.0", source);
    CHECK(join.step == 3);
    source = join.moves.front().source;
  }
  CHECK(source == "n2.0");
  CHECK(tries == 3);  // the damage may have come on the way
  CHECK(s.suspect_steps.empty());
  decide(0, s, StepCommitted{s.generation, 4});
  CHECK(s.bad_copies.empty());
}

TEST_CASE("job: JOB-4, a step that no generation can begin with is left for an older one") {
  for (const bool checkpoint : {false, true}) {
    State s = training(1);
    s.max_restarts = 1'000;
    s.has_checkpoint = s.had_checkpoint = checkpoint;
    s.checkpoint_step = checkpoint ? 3 : 0;
    decide(0, s, TrainerDown{"n0.1", "signal 9"});
    all_idle(s, Steps{2, 3});
    Join join = only<Join>(back(s, "n0.1", 1, made(1, {2, 3})));
    // Its agent goes on to report the copy, and the decision to order nothing for it.
    int tries = 0;
    for (; join.source == Source::memory && join.step == 3; ++tries) {
      REQUIRE(tries < s.give_up_after_cycles);
      decide(0, s, TrainerIdle{"n0.0", s.generation, {}, Fault::bad_copy, 3, "n0.0", "not there"});
      all_answer(s);
      decide(0, s, TrainerIdle{"n0.0", s.generation - 1, of(0, made(1, {2, 3}))});
      const TrainerIdle other{"n0.1", s.generation - 1, of(1, made(1, {2, 3}))};
      const Decision d = decide(0, s, other);
      join = only<Join>(all<Join>(d).empty() ? decide(s.join_timeout_ms + 1, s, Tick{}) : d);
    }
    CHECK(tries == 3);
    CHECK(join.step == (checkpoint ? 3 : 2));
    CHECK(join.source == (checkpoint ? Source::checkpoint : Source::memory));
  }
}

TEST_CASE("job: JOB-4, a trainer that says for ever that it lacks a copy does not end the run") {
  // What it lacks is no copy that the decision knows, so there is none to leave out.
  State s = with_one_lost();
  s.has_checkpoint = s.had_checkpoint = true;
  s.checkpoint_step = 2;
  Join join = after_bad_copy(s, "n3.1", "n3.1");
  int tries = 1;
  for (; join.step == 3; ++tries) {
    CAPTURE(tries);
    REQUIRE(tries < s.give_up_after_cycles);
    join = after_bad_copy(s, "n3.1", "n3.1");
  }
  CHECK(tries == 4);
  CHECK(join.step == 2);
  CHECK(is_suspect(s, 3, 1));
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
    const TrainerIdle bad{"n0.0", join.generation, {}, Fault::bad_checkpoint, join.step,
                          "",     "checksum"};
    CHECK(all<Fence>(decide(0, s, bad)).size() == 1);
    decide(
        0, s,
        TrainerIdle{"n1.0", join.generation, {}, Fault::bad_checkpoint, join.step, "", "checksum"});
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
  decide(0, s, CheckpointSaved{6});
  decide(0, s, CheckpointsLeft{{1, 4, 6}});
  CHECK(s.older_checkpoints == std::vector<uint64_t>{1, 4});
}

TEST_CASE("job: a checkpoint that is gone from the disk is skipped") {
  State s = job_of(2);
  s.has_checkpoint = s.had_checkpoint = true;
  s.checkpoint_step = 8;
  s.older_checkpoints = {2, 6};
  const Decision d = decide(0, s, CheckpointsLeft{{2, 4}});
  CHECK(only<Record>(d).kind == "checkpoint_skipped");
  CHECK(only<Record>(d).subject == "step-8");
  CHECK(s.checkpoint_step == 4);
  CHECK(s.older_checkpoints == std::vector<uint64_t>{2});
  CHECK(only<Record>(decide(0, s, CheckpointsLeft{})).subject == "step-4");
  CHECK(!s.has_checkpoint);
  CHECK(s.had_checkpoint);
  CHECK(s.older_checkpoints.empty());
}

TEST_CASE("job: a run that has had a checkpoint does not begin with initial values by itself") {
  State s = job_of(2);
  decide(0, s, CheckpointSaved{8});
  const Join join = only<Join>(all_up(s));
  CHECK(join.step == 8);
  decide(
      0, s,
      TrainerIdle{"n0.0", join.generation, {}, Fault::bad_checkpoint, join.step, "", "checksum"});
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
  const TrainerIdle unread{"n1.0", generation, {}, Fault::bad_disk, 8, "", "input/output error"};
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
             TrainerIdle{name, join.generation, {}, Fault::bad_disk, 8, "", "stale handle"});
    CHECK(all<Join>(decide(now, s, Tick{})).empty());
    join = only<Join>(decide(now += 6'000, s, Tick{}));
  }
  const Decision last = decide(
      now, s, TrainerIdle{"n0.0", join.generation, {}, Fault::bad_disk, 8, "", "stale handle"});
  CHECK(only<Shutdown>(last).reason.ends_with("n0.0 could not read the checkpoint: stale handle"));
  for (const auto& [name, node] : s.nodes) CHECK(node.state == NodeState::up);
}

}  // namespace simplescale::job::test
