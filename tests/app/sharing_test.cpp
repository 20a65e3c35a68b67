// How tasks on one host divide its CPUs and GPUs.
#include "app/hosts/sharing.hpp"

#include <doctest/doctest.h>

#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::slurm;

namespace {
using Gpus = std::vector<std::string>;

/// seen: the GPUs that each task sees; own: those that it has chosen.
auto share(const std::map<int, Gpus>& seen, int task, int slots,
           const std::map<int, Gpus>& own = {}) {
  std::map<int, HostFacts> told;
  for (const auto& [each, gpus] : seen) told[each].gpus = gpus;
  for (const auto& [each, gpus] : own) told[each].own = gpus;
  return share_gpus(told, task, slots);
}
}  // namespace

TEST_SUITE("sharing") {
  TEST_CASE("sharing: tasks of one host share its GPUs and CPUs unless they are divided") {
    Task task{.local_task = 1, .tasks_on_host = 2};
    CHECK(host_slots(task, 4).first == 4);
    CHECK(host_slots(task, 4).total == 8);
    CHECK(task_cores(task, 16, 16) == 8);  // no mask: half of the host
    CHECK(task_cores(task, 6, 16) == 6);   // Slurm's mask
    CHECK(task_cores(task, 1, 1) == 1);
    task.own_gpus = true;
    CHECK(host_slots(task, 4).first == 0);
    CHECK(host_slots(task, 4).total == 4);
  }

  TEST_CASE("sharing: a narrow CPU mask belongs to the task, a mask of the whole host is shared") {
    Task task{.local_task = 1, .tasks_on_host = 2};
    for (const bool own_gpus : {false, true}) {  // which says nothing about CPUs
      task.own_gpus = own_gpus;
      CHECK(cpu_slots(task, 4, 8, 16).first == 0);
      CHECK(cpu_slots(task, 4, 8, 16).total == 4);
      CHECK(cpu_slots(task, 4, 16, 16).first == 4);
      CHECK(cpu_slots(task, 4, 16, 16).total == 8);
    }
  }

  TEST_CASE("sharing: an agent knows the GPU that each of its slots prefers") {
    const std::string told = "a,b,c,d";
    CHECK(slot_gpus(told, {0, 4}, 4) == Gpus{"a", "b", "c", "d"});
    CHECK(slot_gpus(told, {2, 4}, 2) == Gpus{"c", "d"});  // of the second node of the host
    CHECK(slot_gpus(told, {3, 6}, 3) == Gpus{"d", "a", "b"});
    CHECK(slot_gpus("a", {0, 2}, 2) == Gpus{"a", "a"});
    CHECK(slot_gpus("", {0, 2}, 2).empty());
  }

  TEST_CASE("sharing: a command's task follows from what the others tell of their hosts") {
    const std::map<int, HostFacts> told = {{0, {"a", "boot-1", 10, {}}},
                                           {2, {"b", "boot-2", 20, {}}},
                                           {3, {"a", "boot-1", 30, {}}},
                                           {4, {"a", "boot-4", 40, {}}}};  // the same name
    const Task task = task_among(told, 3, 5);                              // 1 is late
    CHECK(task.task == 3);
    CHECK(task.tasks == 5);
    CHECK(task.local_task == 1);
    CHECK(task.tasks_on_host == 2);
    CHECK(task.other_hosts);
    CHECK(task.host == "a");
    CHECK_FALSE(task.own_gpus);
  }

  TEST_CASE("sharing: two tasks that see the same GPUs prefer different ones") {
    const std::map<int, Gpus> seen = {{0, {"a", "b", "c", "d"}}, {1, {"a", "b", "c", "d"}}};
    CHECK(*share(seen, 0, 2) == Gpus{"a", "b", "c", "d"});
    CHECK(*share(seen, 1, 2) == Gpus{"c", "d", "a", "b"});
  }

  TEST_CASE("sharing: a task that sees all GPUs leaves those to others that they alone see") {
    const std::map<int, Gpus> seen = {{0, {"a", "b", "c"}}, {1, {"b"}}, {2, {"a"}}, {3, {"x"}}};
    CHECK(*share(seen, 0, 1) == Gpus{"c", "a", "b"});
    CHECK(*share(seen, 1, 1) == Gpus{"b"});
    CHECK(*share(seen, 2, 1) == Gpus{"a"});
    CHECK(*share(seen, 3, 1) == Gpus{"x"});  // of another host
  }

  TEST_CASE("sharing: a task that comes later takes no GPU that another one has chosen") {
    const std::map<int, Gpus> seen = {{0, {"a", "b", "c"}}, {1, {"a", "b", "c"}}, {2, {"a"}}};
    CHECK(*share(seen, 0, 1, {{1, {"b"}}}) == Gpus{"c", "a", "b"});  // 2 takes a
    CHECK(*share(seen, 2, 1, {{1, {"b"}}}) == Gpus{"a"});
    CHECK(*share(seen, 1, 1, {{1, {"b"}}}) == Gpus{"b", "a", "c"});
    CHECK(has(share({{0, {"a"}}, {1, {"a"}}}, 1, 1, {{0, {"a"}}}).status().message(),
              "sees 1 GPU, of which other nodes take 1, while"));
  }

  TEST_CASE("sharing: with too few GPUs on every host all tasks share them") {
    for (const std::map<int, Gpus>& seen : {
             std::map<int, Gpus>{{0, {}}, {1, {}}},
             {{0, {"a"}}, {1, {"a"}}},
             {{0, {"a"}}, {1, {"a", "b"}}, {2, {"b", "c"}}, {3, {"c"}}},  // 2 has none
         })
      for (const auto& [task, gpus] : seen) {
        const auto shared = must(share(seen, task, 1));
        CHECK_FALSE(shared->has_value());
      }
  }

  TEST_CASE("sharing: a task that comes later shares if the others do, also with GPUs of its own") {
    std::map<int, HostFacts> told;
    told[0].gpus = {"a"}, told[1].gpus = {"b", "c"}, told[2].gpus = {};
    told[0].shares = true;
    CHECK_FALSE(share_gpus(told, 1, 2)->has_value());
    CHECK(share_gpus(told, 2, 2).status().code() == Code::bad_config);  // it sees none
    told[0].shares = false;                                             // its command is lost
    CHECK(share_gpus(told, 1, 2)->value() == Gpus{"b", "c"});
  }

  TEST_CASE("sharing: a task that alone has too few GPUs is refused, the others keep theirs") {
    std::map<int, Gpus> seen = {{0, {"a", "b"}}, {1, {"a", "b"}}, {2, {"x", "y"}}, {3, {"z"}}};
    CHECK(*share(seen, 0, 2) == Gpus{"a", "b"});
    CHECK(*share(seen, 2, 2) == Gpus{"x", "y"});
    const Status taken = share(seen, 1, 2).status(), few = share(seen, 3, 2).status();
    CHECK(taken.code() == Code::bad_config);
    CHECK(taken.message() ==
          "cluster.trainers_per_node = 2, but this command sees 2 GPUs, of which other nodes take "
          "2, while other nodes have enough GPUs: see what `nvidia-smi` and CUDA_VISIBLE_DEVICES "
          "show here, or start this node on another host");
    CHECK(few.message().starts_with(
        "cluster.trainers_per_node = 2, but this command sees 1 GPU, while other nodes have"));
    seen = {{0, {}}, {1, {"a"}}, {2, {"a"}}};  // 1 and 2 share
    CHECK(share(seen, 0, 1).status().message().find("sees 0 GPUs, while") != std::string::npos);
    for (const int task : {1, 2}) CHECK_FALSE(share(seen, task, 1)->has_value());
  }
}
