// How a run ends: stopped, finished, or given up.
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {

TEST_CASE("job: without any node it stops with the code for a requeue") {
  State s = job_of(2);
  CHECK(only<Shutdown>(decide(s.join_timeout_ms + 1, s, Tick{})).exit == Code::requeue);
}

namespace {
/// Every generation fails with a NaN until the run gives up. Returns that decision.
Decision fails_too_often(State& s) {
  Decision d;
  for (int i = 0; i <= s.give_up_after_cycles; ++i) {
    if (i > 0) REQUIRE(all<Join>(all_idle(s, Steps{3})).size() == 1);
    d = decide(0, s,
               TrainerIdle{"n0.0",
                           s.generation,
                           of(0, made(newest_joined(s), {3})),
                           Fault::non_finite,
                           4,
                           "n1.0",
                           {"step 4: loss nan is not finite"},
                           0,
                           -1,
                           {84, 4}});
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

namespace {
/// All trainers have finished at step 3, and the disk has not taken it `times` times.
int64_t fails_to_save(State& s, int times) {
  int64_t now = 0;
  for (int i = 0; i < times; ++i) {
    for (const Place& p : places(s.rules, s.layout))
      decide(now, s, TrainerFinished{p.trainer, s.generation, 3});
    CHECK(all<Shutdown>(decide(now, s, CheckpointFailed{3, "disk full", s.generation})).empty());
    CHECK(s.waiting_for.find("could not be saved: disk full") != std::string::npos);
    CHECK(all<Fence>(decide(now + 5'000, s, Tick{})).empty());
    CHECK(all<Fence>(decide(now += 5'001, s, Tick{})).size() == 1);
    const Join join = only<Join>(all_idle(s, Steps{2, 3}, now));
    CHECK(join.source == Source::memory);
    CHECK(join.step == 3);
    CHECK(join.save_only);
  }
  for (const Place& p : places(s.rules, s.layout))
    decide(now, s, TrainerFinished{p.trainer, s.generation, 3});
  return now;
}
}  // namespace

TEST_CASE("job: JOB-1, the last step is saved again until the disk takes it") {
  State s = training(2);
  decide(0, s, StopRequested{Code::requeue, "preempted", false});
  const int64_t now = fails_to_save(s, 20);
  SUBCASE("it has room again") {
    const Shutdown end = only<Shutdown>(decide(now, s, CheckpointSaved{3}));
    CHECK(end.exit == Code::requeue);
    CHECK(end.reason.find("preempted at step 3") == 0);
  }
  SUBCASE("a user ends the run at once") {
    decide(now, s, CheckpointFailed{3, "disk full", s.generation});
    CHECK(all<Shutdown>(decide(now, s, StopRequested{Code::requeue, "now", true})).size() == 1);
  }
  SUBCASE("the disk gives no answer") {
    CHECK(only<Shutdown>(decide(now + s.save_timeout_ms + 1, s, Tick{})).exit == Code::io);
  }
}

TEST_CASE("job: a run that gives up ends with its own code if saving fails for too long") {
  State s = training(2);
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  all_idle(s, Steps{3});
  fails_to_save(s, 20);
  const Shutdown end = only<Shutdown>(decide(s.save_timeout_ms + 1, s, Tick{}));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.find("; step 3 could not be saved within 600 s") != std::string::npos);
}

TEST_CASE("job: a run that gives up and cannot save ends after as many failures again") {
  State s = training(2);
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  int tries = 0;
  for (Decision d; all<Shutdown>(d).empty(); ++tries) {
    REQUIRE(tries <= s.give_up_after_cycles);
    REQUIRE(only<Join>(all_idle(s, Steps{3})).save_only);
    d = decide(0, s,
               TrainerIdle{"n0.0", s.generation, of(0, made(newest_joined(s), {3})), Fault::failed,
                           4, "", "a peer was lost"});
  }
  CHECK(tries == s.give_up_after_cycles + 1);
  CHECK(s.exit == Code::gave_up);
  CHECK(s.phase == Phase::failed);
}

TEST_CASE("job: a run that gives up does not save a checkpoint's state again") {
  State s = training(2);
  s.has_checkpoint = true;
  s.checkpoint_step = 2;
  CHECK(all<Shutdown>(fails_too_often(s)).empty());
  const Shutdown end = only<Shutdown>(all_idle(s, Steps{}));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.find("step 3 could not be saved: no memory holds") != std::string::npos);
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
  s.rules.min_domains = 2;
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
         TrainerIdle{"n0.1", one.generation, of(1, made(one.generation, {3})), Fault::failed, 4, "",
                     "a collective failed"});
  all_idle(one, Steps{3});
  decide(0, one, TrainerDown{"n0.0", "signal 9"});  // drains the node, the only one
  CHECK(one.nodes.at("n0").state == NodeState::drained);
  decide(0, one, TrainerIdle{"n0.1", one.generation - 1, of(1, made(1, {3}))});
  all_answer(one);
  const Join drained = only<Join>(back(one, "n0.0", 0, made(1, {3})));
  CHECK(drained.save_only);
  CHECK(drained.step == 3);
}

namespace {
/// A group of two nodes has lost n1, and the memory of n0 holds copies of all shards at step 3. The time
/// to wait for another node is over. Returns that decision.
Decision gives_up_with_half_a_group(State& s) {
  s = training(1, 0, 2);
  decide(0, s, NodeUp{"n0", 1, {9}});
  std::vector<StateCopy> copies;
  for (uint32_t shard = 0; shard < 4; ++shard) copies.push_back({shard, 3, s.generation, 4});
  decide(0, s, PeerCopies{"n0", copies, 0});
  decide(0, s, NodeLost{"n1", "gone"});
  CHECK(all<Join>(all_idle(s, Steps{3})).empty());
  return decide(s.join_timeout_ms + 1, s, Tick{});
}
}  // namespace

TEST_CASE("job: JOB-1, agents save what memory holds if too few nodes for a group are left") {
  State s;
  Join save = only<Join>(gives_up_with_half_a_group(s));
  CHECK(save.by_agents);
  CHECK(save.step == 3);
  CHECK(save.moves.size() == 4);
  for (const Move& move : save.moves) CHECK(move.source == "n0");
  CHECK(s.layout.contains("n1"));  // no trainer joins
  int64_t now = s.join_timeout_ms + 2;
  CHECK(decide(now, s, Tick{}).actions.empty());

  SUBCASE("the disk takes it") {
    const Shutdown end = only<Shutdown>(decide(now, s, CheckpointSaved{3}));
    CHECK(end.exit == Code::requeue);
    CHECK(end.reason.ends_with("missing: n1 (lost: gone); step 3 was saved"));
  }
  SUBCASE("the disk takes it later, and one copy is damaged") {
    for (int i = 0; i < 3; ++i) {
      const uint64_t generation = s.generation;
      CHECK(only<Fence>(decide(now, s, CheckpointFailed{3, "disk full", generation})).generation >
            generation);
      std::vector<StateCopy> left = s.nodes.at("n0").peer;
      std::erase_if(left, [](const StateCopy& copy) { return copy.shard == 0; });
      decide(now, s, PeerCopies{"n0", left, s.generation});  // n0.0 holds it too
      CHECK(all<Join>(decide(now + 5'000, s, Tick{})).empty());
      save = only<Join>(decide(now += 5'001, s, Tick{}));
      CHECK(save.by_agents);
      CHECK(save.step == 3);
      CHECK(save.generation == s.generation);
    }
    CHECK(all<Shutdown>(decide(now, s, CheckpointSaved{3})).size() == 1);
  }
  SUBCASE("the disk never takes it") {
    decide(now, s, CheckpointFailed{3, "disk full", s.generation});
    const Shutdown end = only<Shutdown>(decide(now + s.save_timeout_ms, s, Tick{}));
    CHECK(end.reason.find("; step 3 could not be saved within 600 s") != std::string::npos);
  }
  SUBCASE("its link breaks while the disk is slow") {
    const uint64_t generation = s.generation;
    now += s.join_timeout_ms + 1;
    CHECK(all<Shutdown>(decide(now, s, NodeLost{"n0", "gone"})).empty());
    CHECK(all<Shutdown>(decide(now + s.join_timeout_ms, s, Tick{})).empty());
    decide(now, s, NodeUp{"n0", 1, {9}});
    decide(now, s, NodeChecked{"n0", true, ""});
    for (const char* trainer : {"n0.0", "n0.1"})
      decide(
          now, s,
          TrainerUp{trainer, 1, {1}, of(static_cast<uint32_t>(trainer[3] - '0'), made(1, {3})), 0});
    std::vector<StateCopy> copies;
    for (uint32_t shard = 0; shard < 4; ++shard) copies.push_back({shard, 3, 1, 4});
    save = only<Join>(decide(now, s, PeerCopies{"n0", copies, s.generation}));
    CHECK(save.by_agents);
    CHECK(save.step == 3);
    CHECK(save.generation > generation);  // GEN-2
  }
  SUBCASE("it reports to this supervisor only now, and has not heard of it") {
    const uint64_t generation = s.generation;
    const std::vector<StateCopy> held = s.nodes.at("n0").peer;
    CHECK(only<Fence>(decide(now, s, NodeUp{"n0", 1, {9}})).generation > generation);
    CHECK(only<Join>(decide(now, s, PeerCopies{"n0", held, s.generation})).by_agents);
  }
  SUBCASE("the last node is lost, too") {
    CHECK(all<Shutdown>(decide(now, s, NodeLost{"n0", "gone"})).empty());
    const Shutdown end = only<Shutdown>(decide(now + s.join_timeout_ms + 10'000, s, Tick{}));
    CHECK(end.reason.find("step 3 could not be saved: no memory holds") != std::string::npos);
  }
}

TEST_CASE(
    "job: a stop with too few nodes for a group is saved by agents, at once if no step is undone") {
  for (const uint64_t kept : {3, 2}) {
    State s = training(1, 0, 2);
    decide(0, s, NodeUp{"n0", 1, {9}});
    std::vector<StateCopy> copies;
    for (uint32_t shard = 0; shard < 4; ++shard) copies.push_back({shard, kept, s.generation, 4});
    decide(0, s, PeerCopies{"n0", copies, 0});
    decide(0, s, NodeLost{"n1", "gone"});
    all_idle(s, Steps{3});
    Decision d = decide(5'000, s, StopRequested{Code::ok, "stopped by Ctrl-C", false});
    CHECK(all<Join>(d).size() == (kept == 3));  // else n1 may come back with step 3
    if (kept == 2) d = decide(s.join_timeout_ms + 1, s, Tick{});
    CHECK(only<Join>(d).by_agents);
    CHECK(only<Join>(d).step == kept);
    const Shutdown end = only<Shutdown>(decide(s.join_timeout_ms + 2, s, CheckpointSaved{kept}));
    CHECK(end.exit == Code::ok);
    CHECK(end.reason == "stopped by Ctrl-C; step " + std::to_string(kept) + " was saved");
  }
}

TEST_CASE("job: JOB-1, a stop saves what memory holds beyond the step that is known as committed") {
  State s = training(1, 0, 2);
  s.has_checkpoint = true;
  s.checkpoint_step = 3;  // as a new supervisor knows it
  decide(0, s, NodeUp{"n0", 1, {9}});
  std::vector<StateCopy> copies;
  for (uint32_t shard = 0; shard < 4; ++shard) copies.push_back({shard, 5, s.generation, 4});
  decide(0, s, PeerCopies{"n0", copies, 0});
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{5});
  const Join save = only<Join>(decide(1, s, StopRequested{Code::ok, "stopped by Ctrl-C", false}));
  CHECK(save.by_agents);
  CHECK(save.step == 5);
}

TEST_CASE("job: a stop that loses steps does not end with success") {
  State s = training(1, 0, 2);
  decide(0, s, NodeLost{"n1", "gone"});
  all_idle(s, Steps{3});
  decide(1, s, StopRequested{Code::ok, "stopped by Ctrl-C", false});
  const Shutdown end = only<Shutdown>(decide(s.join_timeout_ms + 2, s, Tick{}));
  CHECK(end.exit == Code::io);
  CHECK(end.reason.find("step 3 could not be saved: no memory holds") != std::string::npos);
}

TEST_CASE("job: a token that the model does not know ends the run with its steps saved") {
  for (const bool reported_first : {true, false}) {
    State s = training(2);
    if (!reported_first)  // another rank learns of it in the vote
      decide(0, s,
             TrainerIdle{"n0.0", s.generation, of(0, made(1, {3})), Fault::failed, 4, "",
                         "n1.0 fails"});
    CHECK(all<Shutdown>(decide(0, s,
                               TrainerIdle{"n1.0", newest_joined(s), of(0, made(1, {3})),
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

TEST_CASE("job: an order that contradicts itself ends the run with its steps saved") {
  const auto reports = [](State& s) {
    const TrainerIdle idle{"n1.0",
                           newest_joined(s),
                           of(0, made(1, {3})),
                           Fault::bad_order,
                           4,
                           "",
                           "nobody has sent shard 1 of 2"};
    decide(0, s, idle);
  };
  State s = training(2);
  State other = s;
  reports(s);
  CHECK(s.giving_up);
  CHECK(s.exit == Code::internal);
  CHECK(s.exit_reason == "the supervisor's order for n1.0 is wrong: nobody has sent shard 1 of 2");
  // Of groups of another size: other groups are tried.
  other.rules.domain_nodes = 2;
  reports(other);
  CHECK_FALSE(other.giving_up);
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

TEST_CASE("job: a trainer that is not in the last step ends a generation that was to be left") {
  for (const bool finished_first : {false, true}) {
    State s = training(2);
    const TrainerIdle gone{"n0.0", s.generation, of(0, made(1, {9, 10}))};
    size_t fences = 0;
    const auto hears = [&](const Event& event) {
      fences += all<Fence>(decide(0, s, event)).size();
    };
    const auto paused_and_resumed = [&] {  // too late: the trainers have begun the last step
      hears(PauseRequested{true, "a user"});
      hears(PauseRequested{false, "a user"});
    };
    paused_and_resumed();
    if (!finished_first) hears(gone);
    for (const Place& p : places(s.rules, s.layout))
      if (p.trainer != gone.trainer) hears(TrainerFinished{p.trainer, s.generation, 10});
    paused_and_resumed();
    if (finished_first) hears(gone);
    CHECK(fences == 1);
    CHECK(only<Join>(all_idle(s, Steps{9, 10})).step == 10);
  }
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

TEST_CASE(
    "job: trainers that have finished tell a new supervisor of a stop that was not recorded") {
  State s = training(2);
  decide(0, s, TrainerFinished{"n0.0", s.generation, 3});
  SUBCASE("the stop outlives a failure") {
    decide(0, s, TrainerDown{"n0.0", "signal 9"});
    all_idle(s, Steps{3});
    const Decision d = back(s, "n0.0", 0, Steps{3});
    CHECK(only<Join>(d).step == 3);
    CHECK(all<StopAtStep>(d).size() == 1);
  }
  SUBCASE("the run ends as a stopped one") {
    for (const Place& p : places(s.rules, s.layout))
      decide(0, s, TrainerFinished{p.trainer, s.generation, 3});
    const Shutdown end = only<Shutdown>(decide(0, s, CheckpointSaved{3}));
    CHECK(end.reason == "stopped by an order of an earlier supervisor at step 3 of 10");
    CHECK(end.exit == Code::ok);
    CHECK(s.phase == Phase::stopped);
  }
  SUBCASE("an agent still knows why") {
    decide(0, s, StopRequested{Code::requeue, "preempted", false});
    decide(0, s, StopRequested{Code::ok, "asked twice", false});
    CHECK(s.exit == Code::requeue);
    CHECK(s.exit_reason == "preempted");
  }
}

TEST_CASE("job: a last checkpoint that failed is saved again, in any order of the reports") {
  for (const bool early : {false, true}) {
    State s = training(2);
    const CheckpointFailed failed{10, "no space left", s.generation};
    if (early) decide(0, s, failed);
    Decision d;
    for (const Place& p : places(s.rules, s.layout))
      d = decide(0, s, TrainerFinished{p.trainer, s.generation, 10});
    if (!early) d = decide(0, s, failed);
    CHECK(all<Shutdown>(d).empty());
    // An older one may fail after it, as once a successor hears of all of them.
    decide(0, s, CheckpointFailed{5, "no space left", s.generation});
    CHECK(all<Fence>(decide(5'001, s, Tick{})).size() == 1);
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
    CHECK(all<Fence>(decide(5'001, s, Tick{})).empty());  // this generation's save goes on
    CHECK(only<Shutdown>(decide(0, s, CheckpointSaved{10})).exit == Code::ok);
  }
}

}  // namespace simplescale::job::test
