// Machines compared with each other: slow ones, different ones, and the table.
#include "runtime/diagnostics/fleet.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

MachineReport machine(const std::string& name, double memory, double link_rtt = 10,
                      const std::string& program = "1.0") {
  return {name,
          {{"memory", true, memory, "GB/s", ""},
           {"clock", true, 1, "ms", ""},
           {"link_rtt", true, link_rtt, "us", ""},
           {"program", true, 0, "", program}},
          ""};
}

std::vector<std::string> unfit(const std::vector<MachineReport>& machines) {
  std::vector<std::string> names;
  for (const MachineReport& m : machines)
    if (!is_fit(m)) names.push_back(m.name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE("fleet") {
  TEST_CASE("fleet: a figure several times worse than the median of the others fails") {
    std::vector<MachineReport> machines = {machine("a", 10), machine("b", 2), machine("c", 11),
                                           machine("d", 9, 101)};
    compare(machines);
    CHECK(unfit(machines) == Names{"b", "d"});
    CHECK(complaint(machines[1]).find("memory: ; 2.00 GB/s is more than 4 times worse") == 0);
    CHECK(complaint(machines[3]).find("link_rtt") == 0);
    CHECK(complaint(machines[0]).empty());
  }

  TEST_CASE("fleet: one other machine is too few, and two slow ones of three are the median") {
    std::vector<MachineReport> two = {machine("a", 10), machine("b", 0.1)};
    compare(two);
    CHECK(unfit(two).empty());
    std::vector<MachineReport> three = {machine("a", 10), machine("b", 1), machine("c", 1)};
    compare(three);
    CHECK(unfit(three).empty());
  }

  TEST_CASE("fleet: machines are also compared with those judged before, which do not change") {
    const std::vector<MachineReport> before = {machine("b", 10), machine("c", 11)};
    std::vector<MachineReport> one = {machine("a", 1)};
    compare(one, before);
    CHECK(unfit(one) == Names{"a"});
    std::vector<MachineReport> alone = {machine("a", 1)};
    compare(alone, {machine("b", 10)});
    CHECK(unfit(alone).empty());
  }

  TEST_CASE(
      "fleet: the figures of a machine that shares its host are not compared, its facts are") {
    std::vector<MachineReport> machines = {machine("a", 10), machine("b", 1, 10, "0.9"),
                                           machine("c", 11), machine("d", 10)};
    machines[1].shares_host = true;
    compare(machines);
    CHECK(complaint(machines[1]) == "program: 0.9; most others have 1.0");
    std::vector<MachineReport> one = {machine("e", 1)};
    machines[0].shares_host = machines[2].shares_host = true;
    compare(one, machines);  // of four others only d counts
    CHECK(unfit(one).empty());
  }

  TEST_CASE("fleet: a disk of 5 MB/s is fast enough, and late wake-ups are not compared") {
    std::vector<MachineReport> machines;
    for (const char* name : {"a", "b", "c"})
      machines.push_back(
          {name, {{"disk", true, 900, "MB/s", ""}, {"clock", true, 1, "ms", ""}}, ""});
    machines[0].checks[0].value = 5;
    machines[0].checks[1].value = 1000;
    compare(machines);
    CHECK(unfit(machines).empty());
    machines[0].checks[0].value = 4.9;
    compare(machines);
    CHECK(unfit(machines) == Names{"a"});
  }

  TEST_CASE("fleet: a program that differs from most fails, half against half does not") {
    std::vector<MachineReport> machines = {machine("a", 9), machine("b", 9, 10, "0.9"),
                                           machine("c", 9)};
    compare(machines);
    CHECK(unfit(machines) == Names{"b"});
    CHECK(complaint(machines[1]) == "program: 0.9; most others have 1.0");
    std::vector<MachineReport> halves = {machine("a", 9), machine("b", 9, 10, "0.9"),
                                         machine("c", 9), machine("d", 9, 10, "0.9")};
    compare(halves);
    CHECK(unfit(halves).empty());
  }

  TEST_CASE(
      "fleet: the table has a line for every machine, also for a missing one, and the reasons") {
    std::vector<MachineReport> machines = {machine("node1", 10),
                                           machine("node2", 1),
                                           machine("node3", 10),
                                           {"node4", {}, "did not come"}};
    compare(machines);
    CHECK(fleet_table(machines) ==
          "node      memory      clock   link_rtt    program\n"
          "            GB/s         ms         us           \n"
          "node1      10.00       1.00      10.00       same  pass\n"
          "node2      1.00!       1.00      10.00       same  FAIL\n"
          "node3      10.00       1.00      10.00       same  pass\n"
          "node4          -          -          -          -  FAIL\n");
    CHECK(fleet_complaints(machines) ==
          "node2: memory: ; 1.00 GB/s is more than 4 times worse than the median 10.00\n"
          "node4: did not come\n");
    const std::vector<MachineReport> rogue = {{"a\033[2J", {}, "\n\n"}};
    CHECK(fleet_table(rogue).find('\033') == std::string::npos);
    CHECK(fleet_complaints(rogue) == "a [2J:   \n");
    const auto page = fleet_json(machines);
    CHECK(page[0]["ok"] == true);
    CHECK(page[1]["checks"][0]["ok"] == false);
    CHECK(page[3]["reason"] == "did not come");
  }
}
