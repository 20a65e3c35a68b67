// What the supervisor makes of a trainer's report that it has left a generation.
#include "actors/supervisor/idle_event.hpp"
#include "actors/supervisor/decision/rollback.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_SUITE("idle event") {
  TEST_CASE("idle event: the reason names trainers, not their ranks, if the members are known") {
    JobSupervisorState s;
    const uint64_t generation = job::newest_joined(s.job);
    s.steps.begin(generation, {{"n0.0", 0, 0}, {"n0.1", 0, 1}, {"n1.0", 1, 0}, {"n1.1", 1, 1}}, 5);
    TrainerIdle idle{.trainer = "n0.0", .generation = generation, .fault = "bad_tokens"};
    idle.reason = "step 6: group 1: trainer 0: disk full";
    CHECK(supervisor::idle_event(s, idle, 0).reason == "step 6: n1.0: disk full");
    idle.reason = "step 6: group 7: trainer 0: disk full";
    CHECK(supervisor::idle_event(s, idle, 0).reason == idle.reason);
    idle.generation = generation + 1;  // of which the members are not known
    idle.reason = "step 6: group 1: trainer 0: disk full";
    CHECK(supervisor::idle_event(s, idle, 0).reason == idle.reason);
  }
}
