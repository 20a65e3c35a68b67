// The parts of the node actor that are plain functions and data: slots, liveness, joining a
// generation, injected faults, and the choice of peers for link checks.
#include <doctest/doctest.h>

#include <unistd.h>

#include <caf/all.hpp>
#include <filesystem>
#include <random>

#include "actors/diagnosis/node_check.hpp"
#include "actors/node/inject.hpp"
#include "actors/node/join.hpp"
#include "actors/node/liveness.hpp"
#include "actors/node/slots.hpp"
#include "runtime/config/config.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_CASE("links: each node measures to the next two nodes that are up") {
  using Names = std::vector<std::string>;
  const Names order = {"a", "b", "c", "d"};
  auto all = [](const std::string&) { return true; };
  CHECK(link_peers(order, "a", all) == Names{"b", "c"});
  CHECK(link_peers(order, "c", all) == Names{"d", "a"});
  CHECK(link_peers(order, "c", [](const std::string& n) { return n != "a"; }) == Names{"d", "b"});
  CHECK(link_peers({"a", "b"}, "a", all) == Names{"b"});
  CHECK(link_peers({"a"}, "a", all).empty());
  CHECK(link_peers(order, "x", all).empty());
}

TEST_SUITE("slots") {
  TEST_CASE("slots: the first processes get the slots, the rest are warm") {
    SlotTable table("n1", 2, 1);
    CHECK(table.slot("n1.0")->process == "n1/p0");
    CHECK(table.slot("n1.1")->process == "n1/p1");
    CHECK(table.process("n1/p2")->slot.empty());
    CHECK(table.trainer("n1.0") == nullptr);  // not up yet
    CHECK(table.process("n2/p0") == nullptr);
    CHECK(table.slot("n2.0") == nullptr);
  }

  TEST_CASE("slots: a warm process gets the slot of a process that dies") {
    SlotTable table("n1", 2, 1);
    for (const char* id : {"n1/p0", "n1/p1", "n1/p2"}) {
      table.process(id)->pid = 7;
      table.process(id)->up = true;
    }
    CHECK(table.process_ended("n1/p1") == "n1.1");
    CHECK(table.trainer("n1.1") == nullptr);
    CHECK(table.fill_slots() == std::vector<std::string>{"n1.1"});
    CHECK(table.slot("n1.1")->process == "n1/p2");
    CHECK(table.trainer("n1.1") != nullptr);
    CHECK(table.fill_slots().empty());
    CHECK(table.process_ended("n1/p1") == "");  // it is warm now, and dies before it is up
    CHECK(table.slot("n1.0")->process == "n1/p0");
  }

  TEST_CASE("slots: a late message of a process that died is not one of its successor") {
    caf::actor_system_config config;
    caf::actor_system system{config};
    const auto spawn = [&] { return system.spawn([] { return caf::behavior{[](int) {}}; }); };
    SlotTable table("n1", 1, 1);
    for (const char* id : {"n1/p0", "n1/p1"}) {
      table.process(id)->pid = 7;
      table.process(id)->up = true;
      table.process(id)->actor = spawn();
    }
    const auto sender = [&](const char* id) {
      return caf::actor_cast<caf::strong_actor_ptr>(table.process(id)->actor);
    };
    const auto old = sender("n1/p0"), next = sender("n1/p1");
    CHECK(table.trainer("n1.0", old) == table.process("n1/p0"));
    CHECK(table.trainer("n1.0", next) == nullptr);  // it is warm
    CHECK(table.trainer("n1.0", nullptr) == nullptr);
    CHECK(table.process_ended("n1/p0") == "n1.0");
    table.fill_slots();
    CHECK(table.trainer("n1.0", old) == nullptr);
    CHECK(table.trainer("n1.0", next) == table.process("n1/p1"));
    for (const auto& actor : {old, next})
      caf::anon_send_exit(caf::actor_cast<caf::actor>(actor), caf::exit_reason::user_shutdown);
  }

  TEST_CASE("slots: a node's GPUs are known once each of its trainers has one") {
    using Gpus = std::vector<uint64_t>;
    SlotTable table("n1", 2, 1);
    for (const char* id : {"n1/p0", "n1/p1", "n1/p2"}) table.process(id)->up = true;
    table.process("n1/p0")->gpu = 5;
    CHECK(table.gpus().empty());
    table.process("n1/p1")->gpu = 3;
    CHECK(table.gpus() == Gpus{3, 5});
    CHECK(table.process_ended("n1/p1") == "n1.1");
    CHECK(table.gpus().empty());
    table.fill_slots();
    CHECK(table.gpus().empty());  // the warm process has just got the slot
    table.process("n1/p2")->gpu = 5;
    CHECK(table.gpus() == Gpus{5});  // they share it
  }

  TEST_CASE("slots: a process that is up is preferred to one that is being started") {
    SlotTable table("n1", 1, 2);
    table.process("n1/p1")->pid = 11;
    table.process("n1/p2")->pid = 12;
    table.process("n1/p2")->up = true;
    CHECK(table.process_ended("n1/p0") == "n1.0");
    table.fill_slots();
    CHECK(table.slot("n1.0")->process == "n1/p2");
    CHECK(table.process_ended("n1/p2") == "n1.0");
    table.fill_slots();
    CHECK(table.slot("n1.0")->process == "n1/p1");
  }

  TEST_CASE("slots: without a warm process, the slot waits for the restart of its process") {
    SlotTable table("n1", 2, 0);
    CHECK(table.process_ended("n1/p0") == "n1.0");
    CHECK(table.fill_slots() == std::vector<std::string>{"n1.0"});
    CHECK(table.slot("n1.0")->process == "n1/p0");
    CHECK(table.trainer("n1.0") == nullptr);
  }
}

namespace {

TrainerProgress at(uint64_t generation, uint64_t step, uint64_t units, bool waiting = false) {
  return {"n0/p0", generation, step, units, waiting};
}

struct Monitored {
  LivenessMonitor monitor{{100, 1000, 5000}};
  int64_t now = 0;
  ProcessState state = ProcessState::runs;
  Monitored() {
    monitor.add(0, "n0/p0", 5);
    monitor.set_in_slot("n0/p0");
    check();
  }
  std::string check() {
    const auto verdicts = monitor.check(now, [this](pid_t pid) {
      CHECK(pid == 5);
      return state;
    });
    return verdicts.empty() ? "" : verdicts[0].reason.text;
  }
  /// Checks every 100 ms until the process is condemned, for at most `ms`. Returns the reason or
  /// "".
  std::string check_for(int64_t ms) {
    for (const int64_t end = now + ms; now < end;) {
      now += 100;
      if (auto reason = check(); !reason.empty()) return reason;
    }
    return "";
  }
};

}  // namespace

TEST_SUITE("liveness") {
  TEST_CASE("liveness: a stopped process is condemned after silence_ms, once") {
    Monitored w;
    w.state = ProcessState::stopped;
    CHECK(w.check_for(1000).empty());
    CHECK(w.check_for(100) == "stopped, silent for 1100 ms");
    CHECK(w.check_for(10'000).empty());
  }

  TEST_CASE("liveness: a silent process that runs has 3 x silence_ms, a warm one 10 x") {
    Monitored w;
    CHECK(w.check_for(3000).empty());
    CHECK(w.check_for(100) == "silent for 3100 ms");
    Monitored idle;
    idle.monitor = LivenessMonitor({100, 1000, 5000});
    idle.monitor.add(0, "n0/p0", 5);
    CHECK(idle.check_for(10'000).empty());
    CHECK(idle.check_for(100) == "silent for 10100 ms");
  }

  TEST_CASE("liveness: time in which check() was not called is no silence") {
    Monitored w;
    w.state = ProcessState::stopped;
    w.check_for(500);
    w.now += 3'600'000;  // the node itself was stopped
    CHECK(w.check().empty());
    CHECK(w.check_for(400).empty());
    CHECK_FALSE(w.check_for(200).empty());
  }

  TEST_CASE("liveness: a process that computes nothing and does not wait is stuck") {
    Monitored w;
    for (int i = 0; i < 50; ++i) {
      w.now += 100;
      w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
      CHECK(w.check().empty());
    }
    w.now += 100;
    w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.check().empty());  // 5000 ms after the first report, which counts as progress
    w.now += 100;
    w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.check().starts_with("stuck at step 7"));
  }

  TEST_CASE("liveness: a process that waits, or is in no generation, is not stuck") {
    Monitored w;
    for (int i = 0; i < 200; ++i) {
      w.now += 100;
      w.monitor.add_progress(w.now, "n0/p0", i < 100 ? at(1, 7, 40, true) : at(0, 7, 40));
      CHECK(w.check().empty());
    }
  }

  TEST_CASE("liveness: progress() says since when a process computes nothing, or is silent") {
    Monitored w;
    w.monitor.add_progress(w.now += 100, "n0/p0", at(1, 7, 40));
    w.monitor.add_progress(w.now += 100, "n0/p0", at(1, 7, 40, true));
    w.monitor.add_progress(w.now += 100, "n0/p0", at(1, 7, 40));
    w.now += 100;
    CHECK(w.monitor.progress(w.now, 2).empty());
    const auto list = w.monitor.progress(w.now, 1);
    REQUIRE(list.size() == 1);
    CHECK(list[0].trainer == "n0/p0");
    CHECK(list[0].still_ms == 300);
    CHECK(list[0].stuck_ms == 200);  // it waited in between
    CHECK(list[0].silent_ms == 100);
  }

  TEST_CASE("liveness: slow steps raise the limit") {
    Monitored w;
    w.monitor.add_step("n0/p0", 500);  // 20 of them are 10 s
    for (int i = 0; i < 100; ++i) {
      w.now += 100;
      w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
      CHECK(w.check().empty());
    }
    w.now += 100;
    w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.check().empty());
    w.now += 100;
    w.monitor.add_progress(w.now, "n0/p0", at(1, 7, 40));
    CHECK_FALSE(w.check().empty());
  }
}

namespace {

std::vector<uint8_t> address(uint8_t x) {
  return {x, x};
}

/// n0.0 n0.1 are group 0, n1.0 n1.1 group 1; n2.0 is in no group.
JoinGeneration two_groups() {
  JoinGeneration job{
      .generation = 5, .source = JoinSource::memory, .step = 8, .checkpoint = "", .groups = 2};
  job.shards = 2;
  job.members = {{"n0.0", 0, 0, address(1)},
                 {"n0.1", 0, 1, address(2)},
                 {"n1.0", 1, 0, address(3)},
                 {"n1.1", 1, 1, address(4)},
                 {"n2.0", no_group, 0, address(5)}};
  return job;
}

Result<NodeOrders> orders(const JoinGeneration& job, const std::vector<LocalTrainer>& locals) {
  Plan plan;
  plan.topology.shards = 2;
  return orders_of(job, plan, locals, [](const Transfer& transfer) {
    return transfer.shard == 0 && transfer.step == 8 ? std::string("peer-0") : std::string();
  });
}

}  // namespace

TEST_SUITE("join") {
  TEST_CASE("join: a trainer learns its place and its two communicators in rank order") {
    const auto made =
        must(orders(two_groups(), {{"n1.0", "s0", address(3)}, {"n1.1", "s1", address(4)}}));
    REQUIRE(made->trainers.size() == 2);
    const JoinTrainer& order = made->trainers[1];
    CHECK(order.trainer == "n1.1");
    CHECK(order.group == 1);
    CHECK(order.shard == 1);
    CHECK(order.ring == 1);
    CHECK(order.state_segment == "s1");
    CHECK(order.axes == std::vector<AxisMembers>{{"shard", 1, {{address(3)}, {address(4)}}},
                                                 {"replicate", 1, {{address(2)}, {address(4)}}}});
    CHECK(order.groups == 2);
    CHECK(made->fill.layout.groups() == 2);
    CHECK(made->fill.start_step == 8);
    CHECK(made->fill.trainers[1].group == 1);
  }

  TEST_CASE("join: trainers and token rings share leaves by the weights of the order") {
    JoinGeneration job = two_groups();
    Plan plan;
    plan.topology.shards = 2;
    plan.batch = BatchSchedule(16);
    job.weights = {1000, 300};
    const auto no_copy = [](const Transfer&) { return std::string(); };
    const auto made = must(orders_of(job, plan, {{"n1.0", "s", address(3)}}, no_copy));
    CHECK(made->trainers[0].weights == job.weights);
    CHECK(made->fill.layout.shares(1) == Shares::by_weight(16, job.weights, 2, 2));
    CHECK(made->fill.layout.shares(1).count(1) == 4);
    for (const std::vector<uint32_t>& wrong :
         std::vector<std::vector<uint32_t>>{{1}, {1, 2, 3}, {0, 1}, {1, 2'000'000}}) {
      job.weights = wrong;
      CHECK(orders(job, {}).status().code() == Code::bad_data);
    }
  }

  TEST_CASE("join: the trainers of an axis learn the same members in the same order") {
    std::mt19937 random(4);
    for (int trial = 0; trial < 50; ++trial) {
      const uint32_t groups = 1 + random() % 5, shards = 1 + random() % 4;
      JoinGeneration job{.generation = 5, .source = JoinSource::initialize, .groups = groups};
      job.shards = shards;
      std::vector<LocalTrainer> locals;
      for (uint32_t rank = 0; rank < groups * shards; ++rank) {
        const std::string name = "n" + std::to_string(rank) + ".0";
        job.members.push_back({name, rank / shards, rank % shards, address(uint8_t(rank))});
        locals.push_back({name, "s", address(uint8_t(rank))});
      }
      std::shuffle(job.members.begin(), job.members.end(), random);
      Plan plan;
      plan.topology.shards = static_cast<int>(shards);
      const auto made = must(orders_of(job, plan, locals, [](const Transfer&) { return ""; }));
      REQUIRE(made->trainers.size() == groups * shards);
      for (uint32_t rank = 0; rank < groups * shards; ++rank) {
        // A rank is its place on the first axis, plus the size of that axis times the next place.
        uint32_t stride = 1;
        for (const AxisMembers& axis : made->trainers[rank].axes) {
          const uint32_t first = rank - axis.place * stride;
          for (uint32_t i = 0; i < axis.members.size(); ++i)
            CHECK(axis.members[i].bytes == address(uint8_t(first + i * stride)));
          CHECK(axis.place == rank / stride % axis.members.size());
          stride *= static_cast<uint32_t>(axis.members.size());
        }
        CHECK(stride == groups * shards);
      }
    }
  }

  TEST_CASE("join: a process with an address that the order does not have is left out") {
    const auto made =
        must(orders(two_groups(), {{"n1.0", "s0", address(9)}, {"n1.1", "s1", address(4)}}));
    REQUIRE(made->trainers.size() == 1);
    CHECK(made->trainers[0].ring == 0);
  }

  TEST_CASE("join: JOB-3: a copy is the newest generation's, also in a process that is up again") {
    const JoinGeneration job = two_groups();
    const LocalMemory stored{"", {}, {{0, 8, 1}}, "undone"}, other{"", {}, {{1, 8, 4}}, "other"};
    const auto of_trainer = [](std::vector<uint8_t> process) {
      return LocalMemory{"n1.0", std::move(process), {{0, 7, 4}, {0, 8, 4}}, "memory"};
    };
    const auto of_step = [](uint64_t step, uint32_t shards = 1) {
      return Transfer{.shard = 0, .step = step, .shards = shards};
    };
    CHECK(segment_of_copy(job, {stored, of_trainer({})}, of_step(8, 2)).empty());
    CHECK(segment_of_copy(job, {stored, of_trainer({}), other}, of_step(8)) == "memory");
    CHECK(segment_of_copy(job, {stored, of_trainer(address(9)), other}, of_step(8)) == "memory");
    // A member sends its own state, or replaces it.
    CHECK(segment_of_copy(job, {stored, of_trainer(address(3)), other}, of_step(8)) == "undone");
    CHECK(segment_of_copy(job, {stored, other}, of_step(7)).empty());
  }

  TEST_CASE("join: rank 0 of a transfer is its source; a trainer in no group has no ring") {
    JoinGeneration job = two_groups();
    job.transfers = {{2, 1, 8, "n2.0", false, {"n1.1", "n0.1"}}, {1, 0, 8, "n2.0", true, {"n1.0"}}};
    const auto made = must(orders(job, {{"n2.0", "s", address(5)}}));
    CHECK(made->fill.trainers.empty());
    REQUIRE(made->trainers.size() == 1);
    const auto& parts = made->trainers[0].transfers;
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].id == 1);
    CHECK(parts[0].segment == "peer-0");
    CHECK(parts[1].rank == 0);
    CHECK(parts[1].source == "n2.0");
    CHECK(parts[1].members == std::vector<DataAddress>{{address(5)}, {address(4)}, {address(2)}});
    const auto target = must(orders(job, {{"n1.1", "s", address(4)}}));
    CHECK(target->trainers[0].transfers[0].rank == 1);
    CHECK(target->trainers[0].transfers[0].segment.empty());
  }

  TEST_CASE("join: JOB-1: an agent is told what it sends from its node's memory") {
    JoinGeneration job = two_groups();
    job.members.push_back({"n2", no_group, 0, address(7)});
    job.transfers.push_back({0, 0, 8, "n2", true, {"n1.0"}});
    const auto made = must(orders(job, {{"n2.0", "s0", address(8)}, {"n2", "", address(7)}}));
    REQUIRE(made->trainers.size() == 1);
    CHECK(made->fill.trainers.empty());
    const JoinTrainer& order = made->trainers[0];
    CHECK(order.trainer == "n2");
    REQUIRE(order.transfers.size() == 1);
    CHECK(order.transfers[0].rank == 0);
    CHECK(order.transfers[0].segment == "peer-0");
    CHECK(order.transfers[0].members == std::vector<DataAddress>{{address(7)}, {address(3)}});

    job.transfers[0].step = 7;  // which this node does not hold
    CHECK(orders(job, {{"n2", "", address(7)}}).status().code() == Code::not_found);
  }

  TEST_CASE("join: a source that is its own target is the only member") {
    JoinGeneration job = two_groups();
    job.transfers = {{0, 0, 8, "n1.0", true, {"n1.0"}}};
    const auto made = must(orders(job, {{"n1.0", "s", address(3)}}));
    CHECK(made->trainers[0].transfers[0].members.size() == 1);
    CHECK(made->trainers[0].transfers[0].takes);
    CHECK(made->trainers[0].transfers[0].segment == "peer-0");
  }

  TEST_CASE("join: a generation may have groups of each size that the plan allows") {
    JoinGeneration job{.generation = 6, .source = JoinSource::memory, .step = 8, .groups = 1};
    job.members = {
        {"n0.0", 0, 0, address(1)}, {"n1.0", 0, 1, address(2)}, {"n2.0", 0, 2, address(3)}};
    job.shards = 3;
    job.transfers = {{0, 1, 8, "n1.0", false, {"n1.0"}, 2}, {1, 1, 8, "n1.0", false, {"n2.0"}, 2}};
    Plan plan;
    plan.topology.shards = plan.topology.group_nodes = 2;
    const auto no_copy = [](const Transfer&) { return std::string(); };
    const std::vector<LocalTrainer> local = {{"n1.0", "s", address(2)}};
    plan.topology.group_sizes = {1, 2};
    CHECK(orders_of(job, plan, local, no_copy).status().code() == Code::bad_data);
    plan.topology.group_sizes = {1, 2, 3};
    const auto made = must(orders_of(job, plan, local, no_copy));
    CHECK(made->fill.layout.shards() == 3);
    const JoinTrainer& order = made->trainers[0];
    CHECK(order.shards == 3);
    CHECK(order.from_shards == 2);  // also if no transfer goes to it
    CHECK(order.axes[0].members.size() == 3);
    REQUIRE(order.transfers.size() == 2);
    for (const uint32_t i : {0, 1}) {
      CHECK(order.transfers[i].shards == 2);
      CHECK(order.transfers[i].to_shards == 3);
      CHECK(order.transfers[i].to_shard == 1 + i);  // what is sent of it
    }
    CHECK(order.transfers[0].takes);
    CHECK(order.transfers[0].members == std::vector<DataAddress>{{address(2)}});
    CHECK_FALSE(order.transfers[1].takes);
    CHECK(order.transfers[1].members == std::vector<DataAddress>{{address(2)}, {address(3)}});
    job.transfers[0].targets = {"n0.0", "n1.0"};
    CHECK(orders_of(job, plan, local, no_copy).status().code() == Code::bad_data);
  }

  TEST_CASE("join: an order that contradicts itself is bad_data") {
    const std::vector<LocalTrainer> locals = {{"n0.0", "s", address(1)}};
    JoinGeneration job = two_groups();
    job.members.pop_back();
    job.members.pop_back();
    CHECK(orders(job, locals).status().code() == Code::bad_data);  // an empty place
    job = two_groups();
    job.members[1].shard = 0;
    CHECK_FALSE(orders(job, locals).ok());  // taken
    job = two_groups();
    job.members[1].group = 7;
    CHECK_FALSE(orders(job, locals).ok());
    job = two_groups();
    job.groups = 0;
    CHECK_FALSE(orders(job, locals).ok());
    job = two_groups();
    job.transfers = {{0, 0, 8, "n0.0", false, {"n9.0"}}};
    CHECK_FALSE(orders(job, locals).ok());  // an unknown target
    job.transfers = {{0, 1, 8, "n0.0", true, {"n0.1"}}};
    CHECK_FALSE(orders(job, locals).ok());  // not in the peer store
  }
}

TEST_SUITE("inject") {
  TEST_CASE("inject: a node injects every kind except kill_supervisor") {
    InjectContext context;
    context.node = "n1";
    context.trainers = {"n1.0", "n1.1"};
    context.pid_of = [](const std::string&) { return 0; };
    std::vector<std::string> passed;
    context.send_to_trainer = [&](const std::string& trainer, const InjectFault& fault) {
      passed.push_back(trainer + " " + fault.kind);
    };
    std::vector<TransportFault> faults;
    context.inject_network_fault = [&](TransportFault fault) { faults.push_back(fault); };
    context.states = std::make_shared<StateStore>();
    context.disk = std::make_shared<DiskFaults>();
    context.checkpoints = "/nonexistent";
    for (const std::string& kind : fault_kinds()) {
      if (kind == "kill_agent" || kind == "stop_agent") continue;  // would hit this test process
      const Status status = inject(context, {kind, "n1.1", 0, 100, 0});
      CHECK((status.code() == Code::bad_data) == (kind == "kill_supervisor"));
    }
    CHECK(passed == std::vector<std::string>{"n1.1 hang_trainer", "n1.1 segfault_trainer",
                                             "n1.1 oom_trainer", "n1.0 partition_node",
                                             "n1.1 partition_node", "n1.0 slow_node",
                                             "n1.1 slow_node", "n1.0 slow_link", "n1.1 slow_link",
                                             "n1.1 bitflip_gradient", "n1.1 nan_loss"});
    REQUIRE(faults.size() == 3);
    CHECK(faults[0].lose == 1);
    CHECK(inject(context, {"hang_trainer", "n2.0"}).code() == Code::not_found);
  }

  TEST_CASE("inject: a full disk fails writes until its time is over") {
    DiskFaults disk;
    disk.fill(std::chrono::hours(1));
    CHECK(disk.create("/tmp/never").status().code() == Code::io);
    disk.fill(std::chrono::milliseconds(0));
    const test::TempFolder folder;
    const std::string path = folder / "a";
    const auto file = must(disk.create(path));
    CHECK(disk.write(*file, path, 0, "x", 1).ok());
    close(*file);
  }
}
