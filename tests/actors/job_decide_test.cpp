// The job's decisions, edge by edge: what a run does when trainers come, fail, finish, and never
// come.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "actors/job/decide.hpp"

using namespace simplescale;
using namespace simplescale::job;

namespace {

State two_by_two() {
  State s;
  s.trainer_names = {"n0.0", "n0.1", "n1.0", "n1.1"};
  s.node_names = {"n0", "n1"};
  for (const auto& name : s.trainer_names) s.trainers[name];
  for (const auto& name : s.node_names) s.nodes[name] = false;
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

Decision everybody_up(State& s, const std::vector<uint64_t>& held = {}) {
  Decision last;
  for (const auto& name : s.trainer_names) last = decide(0, s, TrainerUp{name, 1, {1}, held});
  return last;
}

Decision everybody_idle(State& s, const std::vector<uint64_t>& held) {
  Decision last;
  for (const auto& name : s.trainer_names)
    if (s.trainers[name].state == TrainerState::draining)
      last = decide(0, s, TrainerIdle{name, s.generation - 1, held, ""});
  return last;
}

}  // namespace

TEST_CASE("job: a generation begins only when every trainer is up") {
  State s = two_by_two();
  for (int i = 0; i < 3; ++i)
    CHECK(all<Join>(decide(0, s, TrainerUp{s.trainer_names[static_cast<size_t>(i)], 1, {}, {}}))
              .empty());
  const Join join = only<Join>(decide(0, s, TrainerUp{"n1.1", 1, {}, {}}));
  CHECK(join.generation == 1);
  CHECK(join.source == Source::initialize);
  CHECK(join.step == 0);
}

TEST_CASE("job: generations go on where an earlier start of the run ended") {
  State s = two_by_two();
  s.generation = 41;
  CHECK(only<Join>(everybody_up(s)).generation == 42);
}

TEST_CASE("job: the newest state is used: memory before disk unless disk is newer") {
  State s = two_by_two();
  s.checkpoint_step = 5;
  Join join = only<Join>(everybody_up(s));
  CHECK(join.source == Source::checkpoint);
  CHECK(join.step == 5);

  s = two_by_two();
  s.checkpoint_step = 5;
  join = only<Join>(everybody_up(s, {6, 7}));
  CHECK(join.source == Source::memory);
  CHECK(join.step == 7);

  s = two_by_two();
  s.checkpoint_step = 9;
  CHECK(only<Join>(everybody_up(s, {6, 7})).source == Source::checkpoint);
}

TEST_CASE("job: S1: a generation begins at the newest step that all trainers hold") {
  State s = two_by_two();
  for (const auto& name : s.trainer_names) s.trainers[name].held = {6, 7};
  s.trainers["n1.0"].held = {5, 6};
  CHECK(newest_common_step(s) == 6);
  s.trainers["n1.0"].held = {};
  CHECK_FALSE(newest_common_step(s).has_value());
}

TEST_CASE(
    "job: a dead trainer fences the generation; the next one waits for it and goes on from "
    "memory") {
  State s = two_by_two();
  everybody_up(s);
  decide(0, s, StepCommitted{1, 3});
  const Decision down = decide(0, s, TrainerDown{"n1.0", "killed by signal 9", true});
  CHECK(only<Fence>(down).generation == 2);
  CHECK(s.phase == Phase::recovering);
  CHECK(all<Join>(everybody_idle(s, {3, 4})).empty());
  const Join join = only<Join>(decide(0, s, TrainerUp{"n1.0", 2, {}, {3}}));
  CHECK(join.generation == 2);
  CHECK(join.step == 3);
  CHECK(join.source == Source::memory);
  decide(0, s, StepCommitted{2, 4});
  CHECK(s.phase == Phase::training);
  CHECK(s.cycles == 0);
}

TEST_CASE("job: S4: reports of an older generation change nothing") {
  State s = two_by_two();
  everybody_up(s);
  decide(0, s, TrainerDown{"n0.0", "x", true});
  CHECK(decide(0, s, StepCommitted{1, 9}).actions.empty());
  CHECK(s.committed_step == 0);
  CHECK(decide(0, s, TrainerFinished{"n0.1", 1, 10}).actions.empty());
}

TEST_CASE("job: a step that fails without a death fences once, however many trainers report it") {
  State s = two_by_two();
  everybody_up(s);
  CHECK(all<Fence>(decide(0, s, TrainerIdle{"n0.0", 1, {0}, "rank 2 did not come"})).size() == 1);
  CHECK(all<Fence>(decide(0, s, TrainerIdle{"n0.1", 1, {0}, "aborted"})).empty());
  CHECK(all<Fence>(decide(0, s, TrainerIdle{"n1.0", 1, {0}, "aborted"})).empty());
  const Join join = only<Join>(decide(0, s, TrainerIdle{"n1.1", 1, {0}, "aborted"}));
  CHECK(join.generation == 2);
}

TEST_CASE("job: more generations in a row without a committed step than allowed end the run") {
  State s = two_by_two();
  s.give_up_after_cycles = 3;
  everybody_up(s);
  for (int i = 0; i < 3; ++i) {
    CHECK(all<Shutdown>(decide(0, s, TrainerIdle{"n0.0", s.generation, {0}, "bad"})).empty());
    everybody_idle(s, {0});
  }
  CHECK(only<Shutdown>(decide(0, s, TrainerIdle{"n0.0", s.generation, {0}, "bad"})).exit ==
        Code::gave_up);
  CHECK(s.phase == Phase::failed);
}

TEST_CASE("job: a trainer whose restart budget is spent ends the run with its reason") {
  State s = two_by_two();
  everybody_up(s);
  const Shutdown end = only<Shutdown>(decide(0, s, TrainerDown{"n0.1", "exit code 70", false}));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.find("exit code 70") != std::string::npos);
}

TEST_CASE("job: trainers that never come end the run at the deadline, and are named") {
  State s = two_by_two();
  s.join_timeout_ms = 1000;
  decide(0, s, TrainerUp{"n0.0", 1, {}, {}});
  CHECK(all<Shutdown>(decide(1000, s, Tick{})).empty());
  const Shutdown end = only<Shutdown>(decide(1001, s, Tick{}));
  CHECK(end.exit == Code::gave_up);
  CHECK(end.reason.find("n1.1") != std::string::npos);
  CHECK(end.reason.find("n0.0") == std::string::npos);
}

TEST_CASE(
    "job: the run ends when all have finished and the last step is on disk, in either order") {
  for (bool saved_first : {false, true}) {
    State s = two_by_two();
    everybody_up(s);
    decide(0, s, StepCommitted{1, 10});
    if (saved_first) decide(0, s, CheckpointSaved{10});
    Decision last;
    for (const auto& name : s.trainer_names) last = decide(0, s, TrainerFinished{name, 1, 10});
    if (!saved_first) {
      CHECK(all<Shutdown>(last).empty());
      last = decide(0, s, CheckpointSaved{10});
    }
    CHECK(only<Shutdown>(last).exit == Code::ok);
  }
}

TEST_CASE(
    "job: a stop waits for the agreed step and its checkpoint, then ends with the wish's exit "
    "code") {
  State s = two_by_two();
  everybody_up(s);
  decide(0, s, StepCommitted{1, 3});
  CHECK(all<StopAtStep>(decide(0, s, StopRequested{Code::requeue, "signal 15", false})).size() ==
        1);
  CHECK(s.phase == Phase::stopping);
  CHECK(all<StopAtStep>(decide(0, s, StopRequested{Code::ok, "again", false})).empty());
  for (const auto& name : s.trainer_names) decide(0, s, TrainerFinished{name, 1, 4});
  CHECK(only<Shutdown>(decide(0, s, CheckpointSaved{4})).exit == Code::requeue);
}

TEST_CASE("job: a stop during recovery is carried out after it") {
  State s = two_by_two();
  everybody_up(s);
  decide(0, s, TrainerDown{"n0.0", "x", true});
  CHECK(all<StopAtStep>(decide(0, s, StopRequested{Code::ok, "Ctrl-C", false})).empty());
  everybody_idle(s, {0});
  CHECK(all<StopAtStep>(decide(0, s, TrainerUp{"n0.0", 2, {}, {0}})).size() == 1);
}

TEST_CASE("job: stop now needs nobody's answer") {
  State s = two_by_two();
  CHECK(only<Shutdown>(decide(0, s, StopRequested{Code::ok, "twice", true})).exit == Code::ok);
  CHECK(decide(0, s, NodeLost{"n0", "x"}).actions.empty());
}

TEST_CASE("job: a lost node stops the run so that it can be resumed") {
  State s = two_by_two();
  everybody_up(s);
  CHECK(only<Shutdown>(decide(0, s, NodeLost{"n1", "silent"})).exit == Code::requeue);
}

TEST_CASE("job: the last checkpoint failing is told, an earlier one failing is not the end") {
  State s = two_by_two();
  everybody_up(s);
  CHECK(all<Shutdown>(decide(0, s, CheckpointFailed{5, "disk full"})).empty());
  for (const auto& name : s.trainer_names) decide(0, s, TrainerFinished{name, 1, 10});
  CHECK(only<Shutdown>(decide(0, s, CheckpointFailed{10, "disk full"})).exit == Code::io);
}

TEST_CASE("job: random events never make two generations, an early join or a late answer") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int life = 0; life < 300; ++life) {
    State s = two_by_two();
    uint64_t generation = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string name = s.trainer_names[random() % 4];
      const uint64_t g = s.generation - std::min<uint64_t>(s.generation, random() % 2);
      Event event = Tick{};
      switch (random() % 7) {
        case 0:
          event = TrainerUp{name, 1, {}, {random() % 4}};
          break;
        case 1:
          event = TrainerDown{name, "x", true};
          break;
        case 2:
          event = TrainerIdle{name, g, {random() % 4}, "x"};
          break;
        case 3:
          event = StepCommitted{g, random() % 10};
          break;
        case 4:
          event = TrainerFinished{name, g, 10};
          break;
        case 5:
          event = CheckpointSaved{random() % 11};
          break;
        default:
          break;
      }
      const bool over = s.phase == Phase::finished || s.phase == Phase::failed;
      const Decision d = decide(i, s, event);
      CHECK((!over || d.actions.empty()));
      CHECK(s.generation >= generation);
      for (const Join& join : all<Join>(d)) {
        CHECK(join.generation == s.generation);
        for (const auto& each : s.trainer_names)
          CHECK(s.trainers[each].state == TrainerState::training);
      }
      generation = s.generation;
    }
  }
}
