#include "actors/supervisor/diagnosis.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

NodeChecked checked(const char* node, bool links_ok = true, bool memory_ok = true) {
  const std::vector<CheckResult> results = {{"memory", memory_ok, 10, "GB/s", "slow"},
                                            {"link", links_ok, 1, "GB/s", "no peer answers"}};
  return {node, links_ok && memory_ok, complaints(results), to_json(results).dump()};
}

struct Fixture {
  Fixture() {
    for (auto& [name, node] : job.nodes) {
      node.state = job::NodeState::up;
      agents[name] = {"host", 7, "at-" + name, true};
    }
  }
  /// These nodes are examined together.
  void examine(const std::vector<std::string>& nodes) {
    job.examined = nodes;
    for (const std::string& name : nodes) {
      job.nodes[name].state = job::NodeState::suspect;
      job.nodes[name].checking = true;
    }
  }
  job::State job = job::make_state({1, 1, 1, 3, 1}, {"n0", "n1", "n2"});
  AgentRegistry agents;
  Diagnosis diagnosis;
};

}  // namespace

TEST_SUITE("diagnosis") {
  TEST_CASE("diagnosis: a node measures links to nodes that are up or examined") {
    Fixture f;
    f.job.nodes["n2"].state = job::NodeState::drained;
    const CheckNode order = f.diagnosis.examine({"n0", "slow"}, f.job, f.agents);
    CHECK(order.reason == "slow");
    REQUIRE(order.links.size() == 1);
    CHECK(order.links[0] == LinkEnd{"n1", "at-n1"});
  }

  TEST_CASE("diagnosis: nodes examined together are judged together, or after 30 s") {
    Fixture f;
    f.examine({"n0", "n1"});
    CHECK(f.diagnosis.report(checked("n0"), f.job, f.agents, 1'000).empty());
    CHECK(f.diagnosis.report(checked("n2"), f.job, f.agents, 1'000).size() == 1);  // examined alone
    const auto both = f.diagnosis.report(checked("n1", true, false), f.job, f.agents, 2'000);
    REQUIRE(both.size() == 2);
    CHECK(both[0].wrong.empty());
    CHECK(both[1].wrong == "memory: slow");
    CHECK(f.diagnosis.take_judged().size() == 3);
    CHECK(f.diagnosis.take_judged().empty());
    CHECK(f.diagnosis.report(checked("n0"), f.job, f.agents, 5'000).empty());
    CHECK(f.diagnosis.take_due(f.job, f.agents, 35'000).empty());
    CHECK(f.diagnosis.take_due(f.job, f.agents, 35'001).size() == 1);
  }

  TEST_CASE("diagnosis: a node is not slow because the other nodes of its host compute") {
    Fixture f;
    const auto measured = [&](const char* node, double gflops) {
      const std::vector<CheckResult> results = {{"arithmetic", true, gflops, "GFLOP/s", ""}};
      const auto judged =
          f.diagnosis.report({node, true, "", to_json(results).dump()}, f.job, f.agents, 0);
      REQUIRE(judged.size() == 1);
      return judged[0].wrong;
    };
    CHECK(measured("n1", 20).empty());
    CHECK(measured("n2", 20).empty());
    CHECK(measured("n0", 9).empty());  // all share a host
    f.agents["n0"].host = "host0";
    CHECK(measured("n0", 9).empty());  // n1 and n2 say nothing about their host
    f.agents["n1"].host = "host1";
    f.agents["n2"].host = "host2";
    CHECK(measured("n0", 9).starts_with("arithmetic"));
    CHECK(measured("n0", 10).empty());
  }

  TEST_CASE("diagnosis: links that fail are measured once more, and again while no peer is left") {
    Fixture f;
    const auto failed = [&] {
      f.diagnosis.examine({"n0", ""}, f.job, f.agents);
      const auto examined = f.diagnosis.report(checked("n0", false), f.job, f.agents, 0);
      REQUIRE(examined.size() == 1);
      return examined[0];
    };
    CHECK(f.diagnosis.retry_links(failed(), f.job, f.agents));
    const Examined second = failed();
    f.agents["n1"].pid = f.agents["n2"].pid = 8;  // both agents have restarted meanwhile
    CHECK(f.diagnosis.retry_links(second, f.job, f.agents));
    CHECK_FALSE(f.diagnosis.retry_links(failed(), f.job, f.agents));
    const auto memory = f.diagnosis.report(checked("n0", false, false), f.job, f.agents, 0);
    CHECK_FALSE(f.diagnosis.retry_links(memory[0], f.job, f.agents));
  }
}
