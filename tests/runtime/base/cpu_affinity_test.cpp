// Which CPUs trainers get, on simulated machines.
#include "runtime/base/cpu_affinity.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/base/process.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

CpuList list(const std::string& text) {
  const auto cpus = parse_cpu_list(text);
  REQUIRE(cpus);
  return *cpus;
}

/// A folder like /sys/devices/system/node.
struct Nodes : test::TempFolder {
  void add(const std::string& node, const std::string& cpus) const {
    write(node + "/cpulist", cpus + "\n");
  }
};

}  // namespace

TEST_SUITE("cpu affinity") {
  TEST_CASE("cpu affinity: lists of CPUs are parsed and printed in the form of /proc") {
    CHECK(list("0-3,8,10-11\n") == CpuList{0, 1, 2, 3, 8, 10, 11});
    CHECK(list("").empty());
    CHECK(cpu_list_text({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
    CHECK(cpu_list_text({}).empty());
    for (const char* wrong : {"3-1", "x", "1,,2", "-1", "1-", "0-99999999", "0 1"})
      CHECK_FALSE(parse_cpu_list(wrong));
  }

  TEST_CASE("cpu affinity: NUMA nodes are read from /sys, without nodes that have memory only") {
    const Nodes machine;
    CHECK(numa_nodes(machine.path).empty());
    machine.add("node10", "4-7");
    machine.add("node2", "0-3");
    machine.add("node3", "");
    machine.add("power", "9");
    CHECK(numa_nodes(machine.path) == std::vector<CpuList>{list("0-3"), list("4-7")});
    machine.add("node4", "3");  // in two nodes: contradictory
    CHECK(numa_nodes(machine.path).empty());
  }

  TEST_CASE("cpu affinity: trainers are spread over the NUMA nodes in proportion to their CPUs") {
    const std::vector<CpuList> two = {list("0-3,8-11"), list("4-7,12-15")};
    const CpuList all = list("0-15");
    CHECK(trainer_cpus(all, two, 4) == std::vector<CpuList>{two[0], two[0], two[1], two[1]});
    CHECK(trainer_cpus(all, two, 2) == two);
    CHECK(trainer_cpus(all, two, 1) == std::vector<CpuList>{all});
    // A mask that leaves node 0 two CPUs: it gets one trainer of four.
    CHECK(
        trainer_cpus(list("0,8,4-7,12-13"), two, 4) ==
        std::vector<CpuList>{list("0,8"), list("4-7,12-13"), list("4-7,12-13"), list("4-7,12-13")});
    const std::vector<CpuList> four = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};
    CHECK(trainer_cpus(list("0-7"), four, 2) == std::vector<CpuList>{list("0-3"), list("4-7")});
    CHECK(trainer_cpus(list("0-7"), four, 3) ==
          std::vector<CpuList>{list("0-1"), list("2-5"), list("4-7")});
  }

  TEST_CASE("cpu affinity: nothing is bound with one NUMA node or without node information") {
    const std::vector<CpuList> two = {list("0-3"), list("4-7")}, none(2);
    CHECK(trainer_cpus(list("0-7"), {list("0-7")}, 2) == none);
    CHECK(trainer_cpus(list("0-3"), two, 2) == none);  // the mask lies in one node
    CHECK(trainer_cpus(list("0-8"), two, 2) == none);  // CPU 8 is in no node
    CHECK(trainer_cpus(list("0-7"), {}, 2) == none);
    CHECK(trainer_cpus({}, two, 2) == none);
    CHECK(trainer_cpus(list("0-7"), two, 0).empty());
  }

  TEST_CASE("cpu affinity: for any mask, each trainer's CPUs are in the mask") {
    const std::vector<CpuList> nodes = {list("0-5"), list("6-7"), list("8-15"), list("16-30")};
    unsigned seed = 7;
    for (int round = 0; round < 2000; ++round) {
      CpuList mask;
      for (int cpu = 0; cpu < 31; ++cpu)
        if ((seed = seed * 1103515245 + 12345) >> 16 & 1) mask.push_back(cpu);
      const int trainers = 1 + static_cast<int>((seed = seed * 1103515245 + 12345) >> 16) % 9;
      for (const CpuList& place : trainer_cpus(mask, nodes, trainers)) {
        CHECK(std::ranges::is_sorted(place));
        CHECK(std::ranges::includes(mask, place));
      }
    }
  }

  TEST_CASE("cpu affinity: a process is bound with all its threads; a scoped binding is undone") {
    const CpuList mask = cpu_mask();
    REQUIRE(!mask.empty());
    const CpuList one = {mask.back()};
    {
      const ScopedAffinity there(one);
      CHECK(cpu_mask() == one);
    }
    CHECK(cpu_mask() == mask);
    SpawnOptions command;
    command.argv = {"/bin/sleep", "60"};
    command.cpus = one;
    const auto child = must(spawn(command));
    const auto mask_of = [&] {
      cpu_set_t set;
      sched_getaffinity(*child, sizeof set, &set);
      return CPU_COUNT(&set);
    };
    CHECK(mask_of() == 1);
    CHECK(set_affinity(*child, mask).ok());
    CHECK(mask_of() == static_cast<int>(mask.size()));
    CHECK(set_affinity(*child, {}).ok());
    CHECK(mask_of() == static_cast<int>(mask.size()));
    kill(*child, SIGKILL);
    waitpid(*child, nullptr, 0);
    CHECK(set_affinity(*child, one).code() == Code::not_found);
  }
}
