#include "actors/job/trace_plan.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {
using Windows = std::vector<TraceWindow>;
}

TEST_SUITE("trace_plan") {
  TEST_CASE("trace_plan: chosen steps reach from the end of the one before to their own end") {
    TracePlan plan({2, 4, 5}, true);
    plan.begun(100);
    CHECK(plan.committed(1, 200, 210).empty());
    CHECK(plan.committed(2, 300, 310) == Windows{{"step-00000002", 200, 310}});
    CHECK(plan.committed(3, 400, 410).empty());
    CHECK(plan.committed(4, 500, 510).empty());
    CHECK(plan.committed(5, 600, 610) == Windows{{"steps-00000004-00000005", 400, 610}});
    CHECK(plan.committed(5, 700, 710).empty());
    CHECK(plan.over(800).empty());
  }

  TEST_CASE("trace_plan: the first step begins with its generation") {
    TracePlan plan({1}, false);
    plan.begun(100);
    CHECK(plan.committed(1, 200, 210) == Windows{{"step-00000001", 100, 210}});
  }

  TEST_CASE("trace_plan: steps can be chosen on the way; what is unfinished ends with the run") {
    TracePlan plan({}, false);
    plan.begun(100);
    plan.committed(1, 200, 210);
    plan.choose(2, 10);
    CHECK(plan.committed(2, 300, 310).empty());
    CHECK(plan.committed(3, 400, 410).empty());
    CHECK(plan.over(500) == Windows{{"steps-00000002-00000003", 200, 500}});
  }

  TEST_CASE("trace_plan: a recovery has a step before it and one after") {
    TracePlan plan({}, true);
    plan.begun(100);
    plan.committed(1, 200, 210);
    plan.committed(2, 300, 310);
    plan.incident_begun(1, 1, 350);
    plan.begun(360);
    // Another one before training goes on: the same trace.
    plan.incident_begun(1, 1, 370);
    plan.begun(380);
    CHECK(plan.over(385) == Windows{{"recovery-00000001-0001", 200, 385}});
    TracePlan again({}, true);
    again.begun(100);
    again.committed(1, 200, 210);
    again.committed(2, 300, 310);
    again.incident_begun(1, 1, 350);
    again.begun(360);
    again.incident_ended(7, 1);
    CHECK(again.committed(3, 400, 410) == Windows{{"recovery-00000007-0001", 200, 410}});
    CHECK(again.committed(4, 500, 510).empty());
  }

  TEST_CASE("trace_plan: recoveries are left out if nobody wants them, and steps go on over them") {
    TracePlan plan({2, 3}, false);
    plan.begun(100);
    plan.committed(1, 200, 210);
    plan.committed(2, 300, 310);
    plan.incident_begun(1, 1, 350);
    plan.begun(360);
    plan.incident_ended(2, 1);
    // Step 2 was undone and is made again.
    CHECK(plan.committed(2, 400, 410).empty());
    CHECK(plan.committed(3, 500, 510) == Windows{{"steps-00000002-00000003", 200, 510}});
  }

  TEST_CASE("trace_plan: a recovery long after the last step begins not too long before it") {
    TracePlan plan({}, true);
    plan.begun(1);
    plan.committed(1, 2, 3);
    plan.incident_begun(1, 1, 100'000'000'000);
    plan.incident_ended(2, 1);
    CHECK(plan.committed(2, 101'000'000'000, 102'000'000'000) ==
          Windows{{"recovery-00000002-0001", 90'000'000'000, 102'000'000'000}});
  }
}
