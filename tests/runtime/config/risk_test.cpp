// What `config show` and the start of a run say about losses, by layout.
#include "runtime/config/risk.hpp"

#include <doctest/doctest.h>

#include "tests/must.hpp"

using namespace simplescale;

namespace {

Config layout(int nodes, int group_nodes, int spares = 0) {
  Config c;
  c.model.preset = "micro";
  c.train.max_steps = 300;
  c.cluster.nodes = nodes;
  c.cluster.trainers_per_node = 2;
  c.cluster.spares = spares;
  c.parallel.strategy = Strategy::full_shard;
  c.parallel.group_nodes = group_nodes;
  c.checkpoint.disk_every_steps = 50;
  return c;
}

Risk risk(const Config& c) {
  const auto plan = must(make_plan(c));
  return risk_of(c, *plan);
}

}  // namespace

TEST_SUITE("config risk") {
  TEST_CASE("risk: a lost trainer costs no step") {
    Config c = layout(2, 1);
    CHECK(risk(c).trainer == "no step: its state outlives it, and a warm process takes its place");
    c.supervision.warm_processes = 0;
    CHECK(risk(c).trainer == "no step: its state outlives it, and a new process is started");
  }

  TEST_CASE("risk: a GPU's state that is copied to memory in some steps only costs steps") {
    Config c = layout(2, 2);
    c.checkpoint.peer_every_steps = 0;
    c.checkpoint.memory_every_steps = 4;
    CHECK(
        risk(c).trainer ==
        "up to 4 steps with GPUs: checkpoint.memory_every_steps = 4, and a warm process takes its "
        "place");
    c.checkpoint.memory_every_steps = 0;
    CHECK(risk(c).trainer.starts_with("up to 50 steps with GPUs: "));
    c.checkpoint.peer_every_steps = 8;
    CHECK(risk(c).trainer.starts_with("up to 8 steps with GPUs: "));
    c.cluster.device = DeviceKind::cpu;
    CHECK(risk(c).trainer.starts_with("no step: its state outlives it"));
    c.cluster.device = DeviceKind::cuda;  // killed while the newest step is copied
    c.checkpoint.memory_every_steps = 1;
    CHECK(risk(c).trainer.starts_with("up to 1 step with GPUs: checkpoint.memory_every_steps = 1"));
    c = layout(2, 1);
    c.checkpoint.memory_every_steps = 4;
    CHECK(risk(c).trainer.starts_with("no step: another group has its state, and a warm process "));
  }

  TEST_CASE("risk: a lost node costs no step where another node has a replica") {
    CHECK(risk(layout(2, 1)).node ==
          "no step: the other group trains its samples until it is back");
    CHECK(risk(layout(4, 1)).node ==
          "no step: the other 3 groups train its samples until it is back");
    CHECK(risk(layout(2, 1, 1)).node == "no step: a spare takes its place");
    CHECK(risk(layout(2, 1)).avoid == "");
    CHECK(risk(layout(4, 2)).node ==
          "no step: training goes on with 3 groups of 1 node until it is back");
    CHECK(risk(layout(4, 2, 1)).node == "no step: a spare takes its place");
    Config c = layout(2, 1);
    c.cluster.min_groups = 2;
    CHECK(risk(c).node == "no step, but training waits until it is back: cluster.min_groups = 2");
  }

  TEST_CASE("risk: with one group a lost node costs steps, and settings say how to avoid it") {
    Config c = layout(2, 2);
    c.checkpoint.peer_every_steps = 0;
    CHECK(
        risk(c).node ==
        "up to 50 steps: one group, no peers; training goes on with 1 group of 1 node, after 120 s "
        "if the node may come back");
    c.cluster.prefer = Prefer::group_nodes;
    CHECK(risk(c).node ==
          "up to 50 steps: one group, no peers; training waits until the node is started again");
    CHECK(risk(c).avoid == "parallel.group_nodes = 1 or checkpoint.peer_every_steps = 1");
    c.checkpoint.disk_every_steps = 0;
    CHECK(risk(c).node.starts_with("all steps: one group, no peers, no checkpoint before the end"));
    c.checkpoint.peer_every_steps = -1;
    CHECK(risk(c).node ==
          "about 12 steps: one group, copies on other nodes every 10 steps; training waits until "
          "the node is started again");
    c.cluster.prefer = Prefer::rate;
    c.cluster.join_timeout_ms = 5'000;
    CHECK(risk(c).node.ends_with(
        "goes on with 1 group of 1 node, after 5 s if the node may come back"));
    c.checkpoint.peer_every_steps = 1;
    CHECK(risk(c).node.starts_with("about 3 steps: one group, copies on other nodes every 1 step"));
    CHECK(risk(c).avoid == "parallel.group_nodes = 1");
    CHECK(risk(layout(1, 1)).avoid == "cluster.spares = 1");
    c = layout(1, 0);
    c.parallel.strategy = Strategy::no_shard;
    CHECK(risk(c).node.starts_with("up to 50 steps: all 2 groups on one node, no peers"));
  }

  TEST_CASE("risk: the start of a run says it in one line") {
    CHECK(risk_line(risk(layout(2, 1))) ==
          "if lost: a trainer costs no step; a node costs no step: the other group trains its "
          "samples until it is back; the run's file system costs the whole run");
    Config c = layout(2, 2);
    c.checkpoint.folder = "/other";
    CHECK(risk(c).file_system ==
          "the whole run, unless /other with its checkpoints is on another one");
  }
}
