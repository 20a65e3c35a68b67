// The node's decisions as pure functions: which process is which trainer, whether trainers live and
// get on, and what a generation means for the trainers of one node.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>

#include "actors/diagnosis/node_check.hpp"
#include "actors/node/inject.hpp"
#include "actors/node/join.hpp"
#include "actors/node/slots.hpp"
#include "actors/node/watch.hpp"
#include "runtime/config/config.hpp"

using namespace simplescale;

TEST_CASE("links: each node measures to the next two that are there, and all to different ones") {
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
  TEST_CASE("slots: the first processes are the trainers, the rest is warm") {
    SlotTable table("n1", 2, 1);
    CHECK(table.slot("n1.0")->process == "n1/p0");
    CHECK(table.slot("n1.1")->process == "n1/p1");
    CHECK(table.process("n1/p2")->slot.empty());
    CHECK(table.trainer("n1.0") == nullptr);  // not up yet
    CHECK(table.process("n2/p0") == nullptr);
    CHECK(table.slot("n2.0") == nullptr);
  }

  TEST_CASE("slots: a warm process takes the place of one that dies, the next one is warm") {
    SlotTable table("n1", 2, 1);
    for (const char* id : {"n1/p0", "n1/p1", "n1/p2"}) {
      table.process(id)->pid = 7;
      table.process(id)->up = true;
    }
    CHECK(table.ended("n1/p1") == "n1.1");
    CHECK(table.trainer("n1.1") == nullptr);
    CHECK(table.fill() == std::vector<std::string>{"n1.1"});
    CHECK(table.slot("n1.1")->process == "n1/p2");
    CHECK(table.trainer("n1.1") != nullptr);
    CHECK(table.fill().empty());
    CHECK(table.ended("n1/p1") == "");  // the warm one now, dying before it is up
    CHECK(table.slot("n1.0")->process == "n1/p0");
  }

  TEST_CASE("slots: one that is up is preferred to one that starts, and that to none") {
    SlotTable table("n1", 1, 2);
    table.process("n1/p1")->pid = 11;
    table.process("n1/p2")->pid = 12;
    table.process("n1/p2")->up = true;
    CHECK(table.ended("n1/p0") == "n1.0");
    table.fill();
    CHECK(table.slot("n1.0")->process == "n1/p2");
    CHECK(table.ended("n1/p2") == "n1.0");
    table.fill();
    CHECK(table.slot("n1.0")->process == "n1/p1");
  }

  TEST_CASE("slots: without a warm process the slot waits for the same one's next life") {
    SlotTable table("n1", 2, 0);
    CHECK(table.ended("n1/p0") == "n1.0");
    CHECK(table.fill() == std::vector<std::string>{"n1.0"});
    CHECK(table.slot("n1.0")->process == "n1/p0");
    CHECK(table.trainer("n1.0") == nullptr);
  }
}

namespace {

TrainerProgress at(uint64_t generation, uint64_t step, uint64_t units, bool waiting = false) {
  return {"n0/p0", generation, step, units, waiting};
}

struct Watching {
  TrainerWatch watch{{100, 1000, 5000}};
  int64_t now = 0;
  ProcessState state = ProcessState::runs;
  Watching() {
    watch.up(0, "n0/p0", 5);
    watch.needed("n0/p0");
    look();
  }
  std::string look() {
    const auto verdicts = watch.look(now, [this](pid_t pid) {
      CHECK(pid == 5);
      return state;
    });
    return verdicts.empty() ? "" : verdicts[0].reason;
  }
  /// Looks every 100 ms until somebody is accused, or so long.
  std::string look_for(int64_t ms) {
    for (const int64_t end = now + ms; now < end;) {
      now += 100;
      if (auto reason = look(); !reason.empty()) return reason;
    }
    return "";
  }
};

}  // namespace

TEST_SUITE("watch") {
  TEST_CASE("watch: a stopped process is accused after silence_ms, once") {
    Watching w;
    w.state = ProcessState::stopped;
    CHECK(w.look_for(1000).empty());
    CHECK(w.look_for(100) == "stopped, silent for 1100 ms");
    CHECK(w.look_for(10'000).empty());
  }

  TEST_CASE("watch: a process that runs but gets no time has three times as long, a warm one ten") {
    Watching w;
    CHECK(w.look_for(3000).empty());
    CHECK(w.look_for(100) == "silent for 3100 ms");
    Watching idle;
    idle.watch = TrainerWatch({100, 1000, 5000});
    idle.watch.up(0, "n0/p0", 5);
    CHECK(idle.look_for(10'000).empty());
    CHECK(idle.look_for(100) == "silent for 10100 ms");
  }

  TEST_CASE("watch: a paused observer accuses nobody") {
    Watching w;
    w.state = ProcessState::stopped;
    w.look_for(500);
    w.now += 3'600'000;  // the node itself was stopped
    CHECK(w.look().empty());
    CHECK(w.look_for(400).empty());
    CHECK_FALSE(w.look_for(200).empty());
  }

  TEST_CASE("watch: who computes nothing and waits for nobody is stuck") {
    Watching w;
    for (int i = 0; i < 50; ++i) {
      w.now += 100;
      w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
      CHECK(w.look().empty());
    }
    w.now += 100;
    w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.look().empty());  // 5000 ms after the first report, which counts as a move
    w.now += 100;
    w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.look().starts_with("stuck at step 7"));
  }

  TEST_CASE("watch: who waits for others, or is in no generation, is not stuck") {
    Watching w;
    for (int i = 0; i < 200; ++i) {
      w.now += 100;
      w.watch.heard(w.now, "n0/p0", i < 100 ? at(1, 7, 40, true) : at(0, 7, 40));
      CHECK(w.look().empty());
    }
  }

  TEST_CASE("watch: slow steps stretch the limit") {
    Watching w;
    w.watch.step_took("n0/p0", 500);  // 20 of them are 10 s
    for (int i = 0; i < 100; ++i) {
      w.now += 100;
      w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
      CHECK(w.look().empty());
    }
    w.now += 100;
    w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
    CHECK(w.look().empty());
    w.now += 100;
    w.watch.heard(w.now, "n0/p0", at(1, 7, 40));
    CHECK_FALSE(w.look().empty());
  }
}

namespace {

std::vector<uint8_t> address(uint8_t x) {
  return {x, x};
}

/// n0.0 n0.1 are group 0, n1.0 n1.1 group 1; n2.0 only helps.
JoinGeneration two_groups() {
  JoinGeneration job{.generation = 5, .source = "memory", .step = 8, .checkpoint = "", .groups = 2};
  job.members = {{"n0.0", 0, 0, address(1)},
                 {"n0.1", 0, 1, address(2)},
                 {"n1.0", 1, 0, address(3)},
                 {"n1.1", 1, 1, address(4)},
                 {"n2.0", no_group, 0, address(5)}};
  return job;
}

Result<NodeOrders> orders(const JoinGeneration& job, const std::vector<LocalTrainer>& locals) {
  return orders_of(job, 2, locals, [](uint32_t shard, uint64_t step) {
    return shard == 0 && step == 8 ? std::string("peer-0") : std::string();
  });
}

}  // namespace

TEST_SUITE("join") {
  TEST_CASE("join: a trainer learns its place and its two communicators in rank order") {
    const auto made =
        orders(two_groups(), {{"n1.0", "s0", address(3)}, {"n1.1", "s1", address(4)}});
    REQUIRE(made.ok());
    REQUIRE(made->trainers.size() == 2);
    const JoinTrainer& order = made->trainers[1];
    CHECK(order.trainer == "n1.1");
    CHECK(order.group == 1);
    CHECK(order.shard == 1);
    CHECK(order.ring == 1);
    CHECK(order.state_segment == "s1");
    CHECK(order.shard_members == std::vector<DataAddress>{{address(3)}, {address(4)}});
    CHECK(order.replicate_members == std::vector<DataAddress>{{address(2)}, {address(4)}});
    CHECK(made->fill.groups == 2);
    CHECK(made->fill.start_step == 8);
    CHECK(made->fill.trainers[1].group == 1);
  }

  TEST_CASE("join: a process that the order does not know is left out") {
    const auto made =
        orders(two_groups(), {{"n1.0", "s0", address(9)}, {"n1.1", "s1", address(4)}});
    REQUIRE(made.ok());
    REQUIRE(made->trainers.size() == 1);
    CHECK(made->trainers[0].ring == 0);
  }

  TEST_CASE("join: rank 0 of a transfer is its source; a helper has no rings") {
    JoinGeneration job = two_groups();
    job.transfers = {{2, 1, 8, "n2.0", false, {"n1.1", "n0.1"}}, {1, 0, 8, "n2.0", true, {"n1.0"}}};
    const auto made = orders(job, {{"n2.0", "s", address(5)}});
    REQUIRE(made.ok());
    CHECK(made->fill.trainers.empty());
    REQUIRE(made->trainers.size() == 1);
    const auto& parts = made->trainers[0].transfers;
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].id == 1);
    CHECK(parts[0].segment == "peer-0");
    CHECK(parts[1].rank == 0);
    CHECK(parts[1].source == "n2.0");
    CHECK(parts[1].members == std::vector<DataAddress>{{address(5)}, {address(4)}, {address(2)}});
    const auto target = orders(job, {{"n1.1", "s", address(4)}});
    REQUIRE(target.ok());
    CHECK(target->trainers[0].transfers[0].rank == 1);
    CHECK(target->trainers[0].transfers[0].segment.empty());
  }

  TEST_CASE("join: a source that is its own target takes the copy for itself") {
    JoinGeneration job = two_groups();
    job.transfers = {{0, 0, 8, "n1.0", true, {"n1.0"}}};
    const auto made = orders(job, {{"n1.0", "s", address(3)}});
    REQUIRE(made.ok());
    CHECK(made->trainers[0].transfers[0].members.size() == 1);
    CHECK(made->trainers[0].transfers[0].segment == "peer-0");
  }

  TEST_CASE("join: who gives its shard away settles after all that it gives to") {
    using Rounds = std::map<std::string, uint32_t>;
    // RESTORE-1: a source commits in a later round than all of its targets.
    auto transfer = [](const std::string& source, std::vector<std::string> targets,
                       bool peer = false) {
      return Transfer{0, 0, 8, source, peer, std::move(targets)};
    };
    JoinGeneration job;
    for (const char* name : {"a", "b", "c", "d", "e", "f"})
      job.members.push_back({name, 0, 0, address(1)});
    job.members.push_back({"helper", no_group, 0, address(1)});
    auto rounds = [&](std::vector<Transfer> transfers) {
      job.transfers = std::move(transfers);
      return commit_rounds(job);
    };
    CHECK(rounds({}).empty());
    CHECK(rounds({transfer("a", {"b"})}) == Rounds{{"a", 1}});
    // A chain, in any order.
    CHECK(rounds({transfer("b", {"c"}), transfer("a", {"b"}), transfer("c", {"d"})}) ==
          Rounds{{"a", 3}, {"b", 2}, {"c", 1}});
    // The last of several targets counts, of several transfers too.
    CHECK(rounds({transfer("a", {"f", "b"}), transfer("b", {"c"})}) == Rounds{{"a", 2}, {"b", 1}});
    CHECK(rounds({transfer("a", {"b"}), transfer("a", {"f"}), transfer("b", {"c"})}) ==
          Rounds{{"a", 2}, {"b", 1}});
    // Peer stores and helpers keep what they give, and nobody gives to itself.
    CHECK(rounds({transfer("a", {"b"}, true), transfer("helper", {"c"}), transfer("d", {"d"})}) ==
          Rounds{});
    CHECK(rounds({transfer("a", {"b"}), transfer("b", {"c"}, true)}) == Rounds{{"a", 1}});
    // A ring is one round; before it those that it gives to, after it those that give to it.
    CHECK(rounds({transfer("a", {"b"}), transfer("b", {"a"})}) == Rounds{{"a", 1}, {"b", 1}});
    CHECK(rounds({transfer("a", {"b"}), transfer("b", {"c"}), transfer("c", {"b", "d"}),
                  transfer("d", {"e"}), transfer("f", {"a"})}) ==
          Rounds{{"f", 4}, {"a", 3}, {"b", 2}, {"c", 2}, {"d", 1}});
  }

  TEST_CASE("join: all trainers know how many rounds there are, and each its own") {
    JoinGeneration job = two_groups();
    auto round = [&](const char* name, uint8_t x) {
      const auto made = orders(job, {{name, "s", address(x)}});
      REQUIRE(made.ok());
      const JoinTrainer& order = made->trainers[0];
      return std::pair(order.commit_round, order.commit_rounds);
    };
    CHECK(round("n0.0", 1) == std::pair(0u, 1u));
    job.transfers = {{0, 0, 8, "n0.1", false, {"n1.0"}}, {1, 1, 8, "n1.0", false, {"n1.1"}}};
    CHECK(round("n0.0", 1) == std::pair(0u, 3u));
    CHECK(round("n0.1", 2) == std::pair(2u, 3u));
    CHECK(round("n1.0", 3) == std::pair(1u, 3u));
    CHECK(round("n1.1", 4) == std::pair(0u, 3u));
  }

  TEST_CASE("join: an order that contradicts itself is refused") {
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
  TEST_CASE("inject: every kind that is not the supervisor's is a node's") {
    InjectContext context;
    context.node = "n1";
    context.trainers = {"n1.0", "n1.1"};
    context.pid_of = [](const std::string&) { return 0; };
    std::vector<std::string> passed;
    context.pass_on = [&](const std::string& trainer, const InjectFault& fault) {
      passed.push_back(trainer + " " + fault.kind);
    };
    std::vector<TransportFault> faults;
    context.transport = [&](TransportFault fault) { faults.push_back(fault); };
    context.states = std::make_shared<StateStore>();
    context.disk = std::make_shared<DiskFaults>();
    context.checkpoints = "/nonexistent";
    for (const std::string& kind : fault_kinds()) {
      if (kind == "kill_agent" || kind == "stop_agent") continue;  // that is this test
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

  TEST_CASE("inject: a full disk says so, and is not full for ever") {
    DiskFaults disk;
    disk.fill(std::chrono::hours(1));
    CHECK(disk.create("/tmp/never").status().code() == Code::io);
    disk.fill(std::chrono::milliseconds(0));
    const std::string path = std::filesystem::temp_directory_path() / ("ss-" + unique_id());
    const auto file = disk.create(path);
    REQUIRE(file.ok());
    CHECK(disk.write(*file, path, "x", 1).ok());
    close(*file);
    std::filesystem::remove(path);
  }
}
