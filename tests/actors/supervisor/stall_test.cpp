// A stall names the trainer that the others wait for; a trainer that hangs is told from one that is
// slow, from one that waits, and from a run that does not train.
#include "actors/supervisor/decision/stall.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace simplescale;
using namespace simplescale::job;

namespace {

/// Two groups of two trainers that train with steps of 100 ms.
struct Run {
  State job = make_state({.trainers_per_node = 2, .shards = 2, .domain_nodes = 1, .domains = 2},
                         {"n0", "n1"});
  StallWatch watch;
  int64_t now = 10'000, hung_ms = 0;

  Run() {
    job.phase = Phase::training;
    job.generation = 4;
    job.layout.domains = {{"n0"}, {"n1"}};
    for (auto& [name, trainer] : job.trainers) trainer.state = TrainerState::training;
    watch.begin();
    for (int i = 0; i < 6; ++i) step(100);
  }
  void step(int64_t ms) {
    now += ms;
    ++job.committed_step;
    watch.committed(now);
  }
  using What = TrainerProgress;
  /// Time passes until a trainer hangs, or for `ms`; every 100 ms the nodes report `what` of n0.0
  /// and of the other three trainers, with the times that have passed since now.
  std::optional<TrainerHung> wait(int64_t ms, What first, What others) {
    const int64_t begun = now;
    for (const int64_t end = now + ms; now < end;) {
      now += 100;
      if (watch.ask(now, job))
        for (const char* name : {"n0.0", "n0.1", "n1.0", "n1.1"}) {
          What what = name == std::string("n0.0") ? first : others;
          what.trainer = name;
          what.generation = 4;
          if (what.still_ms == 0) what.still_ms = now - begun;
          what.stuck_ms = what.waiting ? 0 : what.still_ms;
          watch.report(now, what);
        }
      if (auto hung = watch.hung(now, job)) {
        hung_ms = now - begun;
        return hung;
      }
    }
    return {};
  }
  /// Nothing happens for 20 s, which all trainers report once; those not in `computing` wait.
  void stand_still(const std::set<std::string>& computing) {
    now += 20'000;
    REQUIRE(watch.ask(now, job));
    for (const char* name : {"n0.0", "n0.1", "n1.0", "n1.1"})
      watch.report(now, {.trainer = name,
                         .generation = 4,
                         .waiting = !computing.contains(name),
                         .phase = StepPhase::forward,
                         .still_ms = 20'000,
                         .stuck_ms = 20'000});
  }
  std::string sentence() const {
    const auto stall = watch.stall(now, job);
    return stall ? stall->sentence() : "";
  }
};

const TrainerProgress kComputes{.phase = StepPhase::backward, .block = 3};
const TrainerProgress kProgresses{.phase = StepPhase::backward, .block = 3, .still_ms = 40};
const TrainerProgress kWaits{.waiting = true, .phase = StepPhase::backward, .block = 3};
const TrainerProgress kWaitsForTokens{.waiting = true, .phase = StepPhase::data};
const TrainerProgress kWaitsForCopy{.waiting = true, .phase = StepPhase::copy};

}  // namespace

TEST_SUITE("stall") {
  TEST_CASE("stall: the only trainer that computes nothing while the others wait hangs") {
    Run run;
    CHECK_FALSE(run.wait(4'900, kComputes, kWaits));
    CHECK(run.sentence() == "no step for 4 s, waiting for n0.0 (backward, block 3)");
    const auto hung = run.wait(1'000, {.phase = StepPhase::backward, .block = 3, .still_ms = 5'100},
                               {.waiting = true, .still_ms = 5'000});
    REQUIRE(hung);
    CHECK(hung->trainer == "n0.0");
    CHECK(hung->generation == 4);
    CHECK(hung->reason.text ==
          "hung in step 7 (backward, block 3): no progress for 5100 ms while 3 trainers waited");
  }

  TEST_CASE("stall: it is shown after 2 s and three median steps, not before") {
    Run run;
    run.wait(2'000, kComputes, kWaits);
    CHECK(run.sentence().empty());
    run.wait(200, kComputes, kWaits);
    CHECK(run.sentence() == "no step for 2 s, waiting for n0.0 (backward, block 3)");
    Run slow;
    for (int i = 0; i < 16; ++i) slow.step(2'000);
    slow.wait(6'000, kComputes, kWaits);
    CHECK(slow.sentence().empty());
    slow.wait(200, kComputes, kWaits);
    CHECK(slow.sentence() == "no step for 6 s, waiting for n0.0 (backward, block 3)");
  }

  TEST_CASE("stall: a trainer hangs only after ten times the slowest recent step") {
    Run run;
    run.step(3'000);
    const auto hung = run.wait(60'000, kComputes, kWaits);
    REQUIRE(hung);
    CHECK(run.hung_ms > 30'000);
    CHECK(run.hung_ms < 31'000);
  }

  TEST_CASE("stall: a trainer that is slow but computes units does not hang") {
    Run run;
    CHECK_FALSE(run.wait(600'000, kProgresses, kWaits));
    CHECK(run.sentence() == "no step for 600 s, waiting for n0.0 (backward, block 3)");
  }

  TEST_CASE("stall: a trainer that waits for tokens, a copy or the network does not hang") {
    Run run;
    CHECK_FALSE(run.wait(600'000, kWaitsForTokens, kWaits));
    CHECK(run.sentence() == "no step for 600 s, waiting for n0.0 (data)");
    Run copy;
    CHECK_FALSE(copy.wait(600'000, kWaitsForCopy, kWaits));
    CHECK(copy.sentence() == "no step for 600 s, waiting for n0.0 (copy)");
    Run network;
    CHECK_FALSE(network.wait(600'000, kWaits, kWaits));
    CHECK(network.sentence() ==
          "no step for 600 s, all trainers wait in collectives (backward, block 3): is the network "
          "slow?");
    CHECK(network.watch.stall(network.now, network.job)->waiting_for.empty());
  }

  TEST_CASE("stall: several trainers that compute do not hang") {
    Run run;
    CHECK_FALSE(run.wait(600'000, kComputes, kComputes));
    CHECK(run.sentence() == "no step for 600 s, waiting for 4 trainers (backward, block 3)");
    Run two;
    two.stand_still({"n0.0", "n1.0"});
    CHECK_FALSE(two.watch.hung(two.now, two.job));
  }

  TEST_CASE("stall: a trainer that waited until a moment ago does not hang") {
    Run run;
    CHECK_FALSE(run.wait(20'000, kWaitsForTokens, kWaits));
    CHECK_FALSE(run.wait(4'900, kComputes, kWaits));
    Run others;  // it computes for long, but the other trainers did so, too
    CHECK_FALSE(others.wait(20'000, kComputes, {.waiting = true, .still_ms = 100}));
  }

  TEST_CASE("stall: nothing is decided without an answer of every trainer") {
    Run run;
    for (int i = 0; i < 300; ++i) {
      run.now += 100;
      if (run.watch.ask(run.now, run.job))
        for (const char* name : {"n0.0", "n0.1", "n1.0"})
          run.watch.report(run.now, {.trainer = name,
                                     .generation = 4,
                                     .waiting = name != std::string("n0.0"),
                                     .phase = StepPhase::forward,
                                     .still_ms = 20'000,
                                     .stuck_ms = 20'000});
      CHECK_FALSE(run.watch.hung(run.now, run.job));
    }
    CHECK(run.sentence() == "no step for 30 s, waiting for n1.1, which does not answer");
    Run silent;
    CHECK_FALSE(silent.wait(30'000, {.phase = StepPhase::forward, .silent_ms = 1'500}, kWaits));
    CHECK(silent.sentence() == "no step for 30 s, waiting for n0.0, which does not answer");
  }

  TEST_CASE("stall: a report that is older than 2 s says nothing") {
    Run run;
    run.stand_still({"n0.0"});
    CHECK(run.watch.hung(run.now + 2'000, run.job));
    CHECK_FALSE(run.watch.hung(run.now + 2'001, run.job));
  }

  TEST_CASE("stall: start, recovery, pause, validation and the end of a run are no stalls") {
    auto quiet = [](Run& run) {
      return !run.wait(60'000, kComputes, kWaits) && run.sentence().empty();
    };
    Run young;
    young.watch = {};
    young.watch.begin();
    young.step(100);
    young.step(100);
    CHECK(quiet(young));  // too few steps
    Run joined;
    joined.watch.begin();
    CHECK(quiet(joined));  // no step of this generation yet
    Run recovering;
    recovering.job.phase = Phase::recovering;
    CHECK(quiet(recovering));
    Run paused;
    for (auto& [name, trainer] : paused.job.trainers) trainer.state = TrainerState::idle;
    CHECK(quiet(paused));
    Run finished;
    finished.job.trainers.at("n1.1").state = TrainerState::finished;
    CHECK(quiet(finished));
    Run validates;
    CHECK_FALSE(validates.wait(600'000, {.phase = StepPhase::validation, .still_ms = 50},
                               {.waiting = true, .phase = StepPhase::validation, .still_ms = 50}));
    CHECK(validates.sentence().empty());
    Run long_validation;  // some trainers have less to validate than others
    CHECK_FALSE(long_validation.wait(60'000, {.phase = StepPhase::validation},
                                     {.waiting = true, .phase = StepPhase::validation}));
  }

  TEST_CASE("stall: a step ends it, and what was reported before says nothing about the next") {
    Run run;
    CHECK_FALSE(run.wait(4'000, kComputes, kWaits));
    CHECK_FALSE(run.sentence().empty());
    run.step(100);
    CHECK(run.sentence().empty());
    run.now += 60'000;
    CHECK_FALSE(run.watch.hung(run.now, run.job));
    CHECK(run.sentence().empty());
  }
}
