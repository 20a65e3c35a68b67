#include "actors/supervisor/trace_plan.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace simplescale;

namespace {
using Windows = std::vector<TraceWindow>;
}

TEST_SUITE("trace_plan") {
  TEST_CASE(
      "trace_plan: a chosen step's window reaches from the end of the step before to its end") {
    TracePlan plan({2, 4, 5}, true);
    plan.generation_begun(100);
    CHECK(plan.committed(1, 200, 210).empty());
    CHECK(plan.committed(2, 300, 310) == Windows{{"step-00000002", 200, 310}});
    CHECK(plan.committed(3, 400, 410).empty());
    CHECK(plan.committed(4, 500, 510).empty());
    CHECK(plan.committed(5, 600, 610) == Windows{{"steps-00000004-00000005", 400, 610}});
    CHECK(plan.committed(5, 700, 710).empty());
    CHECK(plan.end(800).empty());
  }

  TEST_CASE("trace_plan: the window of the first step begins with its generation") {
    TracePlan plan({1}, false);
    plan.generation_begun(100);
    CHECK(plan.committed(1, 200, 210) == Windows{{"step-00000001", 100, 210}});
  }

  TEST_CASE(
      "trace_plan: steps can be chosen while the run trains; an open window ends with the run") {
    TracePlan plan({}, false);
    plan.generation_begun(100);
    plan.committed(1, 200, 210);
    plan.choose(2, 10);
    CHECK(plan.committed(2, 300, 310).empty());
    CHECK(plan.committed(3, 400, 410).empty());
    CHECK(plan.end(500) == Windows{{"steps-00000002-00000003", 200, 500}});
  }

  TEST_CASE("trace_plan: a recovery's window includes the step before it and the step after it") {
    TracePlan plan({}, true);
    plan.generation_begun(100);
    plan.committed(1, 200, 210);
    plan.committed(2, 300, 310);
    plan.incident_begun(1, 1, "n0", 350);
    plan.generation_begun(360);
    // A second failure before training continues belongs to the same trace.
    plan.incident_begun(1, 1, "n0", 370);
    plan.generation_begun(380);
    CHECK(plan.end(385) == Windows{{"recovery-00000001-0001", 200, 385}});
    TracePlan again({}, true);
    again.generation_begun(100);
    again.committed(1, 200, 210);
    again.committed(2, 300, 310);
    again.incident_begun(1, 1, "n0", 350);
    again.generation_begun(360);
    again.incident_ended(7, 1);
    CHECK(again.committed(3, 400, 410) == Windows{{"recovery-00000007-0001", 200, 410}});
    CHECK(again.committed(4, 500, 510).empty());
  }

  TEST_CASE("trace_plan: without recovery traces, a window of steps continues over a recovery") {
    TracePlan plan({2, 3}, false);
    plan.generation_begun(100);
    plan.committed(1, 200, 210);
    plan.committed(2, 300, 310);
    plan.incident_begun(1, 1, "n0", 350);
    plan.generation_begun(360);
    plan.incident_ended(2, 1);
    // Step 2 was undone and is made again.
    CHECK(plan.committed(2, 400, 410).empty());
    CHECK(plan.committed(3, 500, 510) == Windows{{"steps-00000002-00000003", 200, 510}});
  }

  TEST_CASE("trace_plan: a recovery's window begins at most 10 s before the failure") {
    TracePlan plan({}, true);
    plan.generation_begun(1);
    plan.committed(1, 2, 3);
    plan.incident_begun(1, 1, "n0", 100'000'000'000);
    plan.incident_ended(2, 1);
    CHECK(plan.committed(2, 101'000'000'000, 102'000'000'000) ==
          Windows{{"recovery-00000002-0001", 90'000'000'000, 102'000'000'000}});
  }

  TEST_CASE("trace_plan: all nodes write chosen steps, at most 16 nodes write a recovery") {
    std::vector<std::string> nodes;
    for (int i = 0; i < 1000; ++i) nodes.push_back("n" + std::to_string(i));
    const TraceWindow step{"step-00000002", 1, 2}, recovery{"recovery-00000001-0001", 1, 2};
    TracePlan plan({}, true);
    plan.incident_begun(1, 1, "n777", 10);
    plan.incident_begun(1, 1, "n3", 11);
    CHECK(plan.writers(step, nodes) == nodes);
    const auto chosen = plan.writers(recovery, nodes);
    CHECK(std::set<std::string>(chosen.begin(), chosen.end()).size() == TracePlan::kRecoveryNodes);
    CHECK(std::vector<std::string>(chosen.begin(), chosen.begin() + 2) ==
          std::vector<std::string>{"n3", "n777"});
    nodes.resize(5);
    CHECK(plan.writers(recovery, nodes) == nodes);
    CHECK(plan.writers(recovery, {}).empty());
    // More nodes have failed than may write.
    for (int i = 0; i < 100; ++i) plan.incident_begun(1, 1, "n" + std::to_string(i), 12);
    for (int i = 5; i < 100; ++i) nodes.push_back("n" + std::to_string(i));
    CHECK(plan.writers(recovery, nodes).size() == TracePlan::kRecoveryNodes);
    // The next recovery has its own failed nodes.
    plan.incident_ended(2, 1);
    plan.committed(1, 20, 21);
    plan.incident_begun(2, 2, "n99", 30);
    CHECK(plan.writers(recovery, nodes).front() == "n99");
  }
}
