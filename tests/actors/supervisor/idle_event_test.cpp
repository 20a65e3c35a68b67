// What the supervisor adds to a trainer's report that it has left a generation.
#include "actors/supervisor/idle_event.hpp"

#include <doctest/doctest.h>

#include "actors/supervisor/decision/rollback.hpp"

using namespace simplescale;

TEST_SUITE("idle event") {
  TEST_CASE("idle event: the reason names the trainer at fault, if the members are known") {
    JobSupervisorState s;
    const uint64_t generation = job::newest_joined(s.job);
    s.steps.begin(generation, {{"n0.0", 0, 0}, {"n0.1", 0, 1}, {"n1.0", 1, 0}, {"n1.1", 1, 1}}, 5);
    TrainerIdle idle{.trainer = "n0.0", .generation = generation, .fault = Fault::bad_tokens};
    const std::string by_rank = "step 6: group 1: trainer 0: disk full";
    idle.reason = {.text = by_rank, .step = 6, .detail = "disk full"};
    idle.suspect_rank = 2;
    CHECK(supervisor::idle_event(s, idle, 0).suspect == "n1.0");
    CHECK(supervisor::idle_event(s, idle, 0).reason.text == "step 6: n1.0: disk full");
    idle.suspect_rank = 14;
    CHECK(supervisor::idle_event(s, idle, 0).reason.text == by_rank);
    idle.suspect_rank = 2;
    idle.generation = generation + 1;  // of which the members are not known
    CHECK(supervisor::idle_event(s, idle, 0).reason.text == by_rank);
  }

  TEST_CASE("idle event: a value that is not finite") {
    JobSupervisorState s;
    TrainerIdle idle{.generation = job::newest_joined(s.job), .fault = Fault::non_finite};
    idle.reason = {.text = "step 6: loss nan is not finite", .step = 6, .detail = "loss nan"};
    const Reason reason = supervisor::idle_event(s, idle, 0).reason;
    CHECK(reason.text == "step 6: loss nan is not finite");
    CHECK(reason.detail == "step 6: loss nan");
  }
}
