// Groups, shards and ranks of many layouts; batch, learning rate and memory.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <set>

#include "runtime/config/offload.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/training/collective.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

Config cluster(int nodes, int trainers, Strategy strategy, int group_nodes = 0) {
  Config c;
  c.model.preset = "micro";
  c.train.max_steps = 100;
  c.cluster.nodes = nodes;
  c.cluster.trainers_per_node = trainers;
  c.parallel.strategy = strategy;
  c.parallel.group_nodes = group_nodes;
  return c;
}

std::string error_of(const Config& config) {
  const auto plan = make_plan(config);
  if (plan.ok()) return "no error";
  CHECK(plan.status().code() == Code::bad_config);
  return plan.status().message();
}

constexpr Strategy automatic = Strategy::automatic, full = Strategy::full_shard,
                   grad_op = Strategy::shard_grad_op, hybrid = Strategy::hybrid_shard,
                   none = Strategy::no_shard;

}  // namespace

TEST_SUITE("config topology") {
  TEST_CASE("topology: the largest possible layout is planned quickly") {
    Config c =
        cluster(1008, 64, hybrid, 1);  // the estimate covers every number of remaining groups
    c.train.micro_batch_size = 1;
    CHECK(make_plan(c)->topology.groups == 1008);
  }

  TEST_CASE("topology: a layout with more ranks than a collective can have is refused") {
    const Config largest = cluster(16, 64, full);
    CHECK(plan_topology(largest)->most_ranks() == kRanksMax);
    CHECK(plan_topology(cluster(1023, 1, none))->most_ranks() == kRanksMax);
    CHECK(error_of(cluster(32, 64, full)) ==
          "parallel: a group would have 2048 trainers, 1024 at most: set parallel.group_nodes, or "
          "strategy = \"hybrid_shard\"");
    CHECK(error_of(cluster(1024, 1, none)) ==
          "parallel: each shard would be on 1024 trainers, and one more may send it: 1024 at most; "
          "use larger groups (parallel.group_nodes)");
  }

  TEST_CASE("topology: groups may have each size whose trainers fit memory") {
    Config c = cluster(4, 2, full, 2);
    using Sizes = std::vector<int>;
    const auto sizes = [&] { return must(make_plan(c))->topology.group_sizes; };
    CHECK(sizes() == Sizes{1, 2, 3, 4});  // micro needs less than 4 GiB
    CHECK(must(make_plan(c))->topology.shards_of(3) == 6);
    CHECK(must(make_plan(c))->topology.most_ranks() == 8);
    c.cluster.prefer = Prefer::group_nodes;
    CHECK(sizes() == Sizes{2});
    CHECK(must(make_plan(c))->topology.most_ranks() == 4);
    c.cluster.prefer = Prefer::rate;
    CHECK(sizes() == Sizes{1, 2, 3, 4});
    // Between what 4 and 6 shards need; the configured size is checked by itself.
    const auto needs = [&](int shards) {
      const auto plan = must(make_plan(c));
      return static_cast<double>(memory_estimate(c, plan->shape, plan->topology.sharding, shards,
                                                 8 / shards, plan->leaves)
                                     .total()) /
             (1u << 30);
    };
    c.cluster.memory_per_trainer_gib = (needs(2) + needs(4)) / 2;
    CHECK(sizes() == Sizes{2, 3, 4});
    c.cluster.spares = 1;
    c.cluster.max_nodes = 8;
    c.train.global_batch_size = 16 * c.train.micro_batch_size;
    CHECK(sizes() == Sizes{2, 3, 4, 5, 6, 7});
    // Memory that is not known has room for the configured groups.
    c = cluster(4, 1, full, 2);
    c.model.preset = "tinyllama";
    CHECK(sizes() == Sizes{2, 3, 4});
    c = cluster(4, 2, none);
    CHECK(sizes() == Sizes{1});
    c = cluster(4, 2, full, 1);
    CHECK(sizes() == Sizes{1});
  }

  TEST_CASE("topology: groups and shards by strategy") {
    struct Row {
      Strategy strategy;
      int nodes, trainers, group_nodes;  // as configured
      int groups, shards, group_nodes_found;
      Sharding sharding;
    };
    const Row rows[] = {
        {full, 1, 1, 0, 1, 1, 1, Sharding::full_shard},
        {full, 2, 2, 0, 1, 4, 2, Sharding::full_shard},
        {full, 4, 2, 2, 2, 4, 2, Sharding::full_shard},
        {grad_op, 2, 2, 0, 1, 4, 2, Sharding::shard_grad_op},
        {grad_op, 2, 2, 1, 2, 2, 1, Sharding::shard_grad_op},
        {hybrid, 2, 2, 0, 1, 4, 2, Sharding::full_shard},
        {hybrid, 2, 2, 1, 2, 2, 1, Sharding::full_shard},
        {hybrid, 3, 1, 1, 3, 1, 1, Sharding::full_shard},
        {hybrid, 8, 8, 0, 2, 32, 4, Sharding::full_shard},
        {hybrid, 6, 1, 3, 2, 3, 3, Sharding::full_shard},
        {none, 2, 2, 0, 4, 1, 1, Sharding::no_shard},
        {none, 1, 3, 0, 3, 1, 1, Sharding::no_shard},
        {none, 2, 2, 4, 4, 1, 1, Sharding::no_shard},  // group_nodes is ignored
        {automatic, 1, 1, 0, 1, 1, 1, Sharding::full_shard},
        {automatic, 8, 8, 0, 8, 8, 1, Sharding::full_shard},  // as many replicas as possible
        {automatic, 8, 8, 2, 4, 16, 2, Sharding::full_shard},
        {automatic, 128, 8, 0, 128, 8, 1, Sharding::full_shard},
    };
    for (const Row& row : rows) {
      INFO("to_string(row.strategy) = ", to_string(row.strategy), ", row.nodes = ", row.nodes,
           ", row.group_nodes = ", row.group_nodes);
      const auto t =
          must(plan_topology(cluster(row.nodes, row.trainers, row.strategy, row.group_nodes)));
      CHECK(t->groups == row.groups);
      CHECK(t->shards == row.shards);
      CHECK(t->group_nodes == row.group_nodes_found);
      CHECK(t->sharding == row.sharding);
      CHECK(t->strategy != automatic);
    }
  }

  TEST_CASE("topology: auto gathers parameters once a step on GPUs that have memory for them") {
    Config c = cluster(2, 4, automatic);
    c.model.preset = "tinyllama";
    c.train.micro_batch_size = 1;
    c.train.precision = DType::bf16;
    c.cluster.device = DeviceKind::cuda;
    const auto sharding = [&](double gib) {
      c.cluster.memory_per_trainer_gib = gib;
      return plan_topology(c)->sharding;
    };
    CHECK(sharding(80) == Sharding::shard_grad_op);
    CHECK(plan_topology(c)->strategy == grad_op);
    CHECK(plan_topology(c)->shards == 4);
    double least = 80;  // with less, the smallest group that fits keeps shards only
    while (sharding(least) == Sharding::shard_grad_op) least -= 0.25;
    CHECK(sharding(least) == Sharding::full_shard);
    CHECK(plan_topology(c)->shards == 4);
    CHECK(sharding(0) == Sharding::full_shard);
    c.cluster.device = DeviceKind::cpu;
    CHECK(sharding(80) == Sharding::full_shard);
  }

  TEST_CASE("topology: auto without a known memory: 4 GiB, else the paper's groups") {
    struct Row {
      int nodes, trainers, groups, group_nodes;
    };
    for (const Row& row : {Row{2, 1, 1, 2}, Row{8, 1, 1, 8}, Row{16, 1, 4, 4},
                           Row{10, 1, 2, 5},      // 4 does not divide 10
                           Row{11, 1, 1, 11}}) {  // a prime: one group
      CAPTURE(row.nodes);
      Config c = cluster(row.nodes, row.trainers, automatic);
      c.model.preset = "llama2-7b";  // 84 GB of training state
      c.train.micro_batch_size = 1;
      const auto t = must(plan_topology(c));
      CHECK(t->groups == row.groups);
      CHECK(t->group_nodes == row.group_nodes);
      CHECK(smallest_group(c) == 0);
    }
    CHECK(smallest_group(cluster(8, 2, full)) == 1);
  }

  TEST_CASE("topology: peer copies are made where one node would take the only replica along") {
    auto every = [](const Config& c) { return peer_every_steps(c, *plan_topology(c)); };
    CHECK(every(cluster(2, 2, full)) == 10);
    CHECK(every(cluster(2, 2, full, 1)) == 0);  // two groups
    CHECK(every(cluster(1, 2, full)) == 0);     // there is no other node
    CHECK(every(cluster(1, 2, none)) == 0);
    CHECK(every(cluster(2, 2, none)) == 0);
    Config c = cluster(1, 2, none);
    c.cluster.spares = 1;
    CHECK(every(c) == 10);
    c.checkpoint.peer_every_steps = 0;
    CHECK(every(c) == 0);
    c = cluster(2, 2, full, 1);
    c.checkpoint.peer_every_steps = 3;
    CHECK(every(c) == 3);
  }

  TEST_CASE(
      "topology: rank = group x shards + shard, and shards are the trainers of the group's nodes") {
    for (const Strategy strategy : {automatic, full, grad_op, hybrid, none})
      for (int nodes = 1; nodes <= 12; ++nodes)
        for (int trainers = 1; trainers <= 4; ++trainers)
          for (int group_nodes = 1; group_nodes <= nodes; ++group_nodes) {
            if (nodes % group_nodes) continue;
            const auto t = must(plan_topology(cluster(nodes, trainers, strategy, group_nodes)));
            REQUIRE(t->world() == nodes * trainers);
            REQUIRE(t->trainers.size() == static_cast<size_t>(t->world()));
            std::set<std::string> names;
            for (int rank = 0; rank < t->world(); ++rank) {
              const TrainerPlace& place = t->trainers[rank];
              REQUIRE(place.rank == rank);
              REQUIRE(place.rank == place.group * t->shards + place.shard);
              if (strategy != none) {
                REQUIRE(place.group == place.node / group_nodes);
                REQUIRE(place.shard == place.node % group_nodes * trainers + place.slot);
              }
              names.insert(place.name());
            }
            REQUIRE(names.size() == t->trainers.size());
          }
    CHECK(plan_topology(cluster(2, 2, hybrid, 1))->trainers[2].name() == "n1.0");
  }

  TEST_CASE("topology: nodes that do not form whole groups are refused with the sizes that do") {
    CHECK(error_of(cluster(6, 1, hybrid)) ==
          "parallel.group_nodes = 4 does not divide cluster.nodes = 6: use 1, 2, 3 or 6 nodes "
          "per group");
    CHECK(error_of(cluster(2, 1, hybrid, 4)) ==
          "parallel.group_nodes = 4 is more than cluster.nodes = 2");
    CHECK(error_of(cluster(5, 1, full, 2)).find("use 1 or 5 nodes per group") != std::string::npos);
    Config c = cluster(2, 2, hybrid, 1);
    c.cluster.min_groups = 3;
    CHECK(error_of(c) == "cluster.min_groups = 3 is more than the layout's 2 groups");
  }

  TEST_CASE(
      "topology: auto takes the smallest group that fits memory, and refuses a model that never "
      "fits") {
    Config c = cluster(16, 8, automatic);
    c.model.preset = "llama3-8b";
    c.model.block_size = 2048;
    c.train.micro_batch_size = 1;
    c.cluster.device = DeviceKind::cuda;
    int previous = 17;
    for (const double gib : {16.0, 24.0, 32.0, 40.0, 80.0}) {
      c.cluster.memory_per_trainer_gib = gib;
      const auto t = plan_topology(c);
      if (!t.ok()) {
        CHECK(previous == 17);  // only the smallest memory is too small
        continue;
      }
      CHECK(t->group_nodes <= previous);
      previous = t->group_nodes;
      const auto shape = model_shape(c);
      const int world = t->world();
      CHECK(memory_estimate(c, *shape, t->sharding, t->shards, t->groups, world).total() <=
            gib * (1u << 30));
      if (t->group_nodes > 1)
        CHECK(memory_estimate(c, *shape, t->sharding, t->shards / 2, 2 * t->groups, world).total() >
              gib * (1u << 30));
    }
    CHECK(previous < 16);
    c.cluster.memory_per_trainer_gib = 1;
    CHECK(error_of(c).starts_with("cluster.memory_per_trainer_gib: the model needs about "));
  }

  TEST_CASE("plan: accumulation is the global batch over all trainers' micro-batches") {
    Config c = cluster(2, 2, hybrid, 1);
    auto plan = must(make_plan(c));
    CHECK(plan->accumulation == 1);
    CHECK(plan->global_batch_size == 32);
    CHECK(plan->leaves == 4);
    c.train.global_batch_size = 96;
    plan = make_plan(c);
    CHECK(plan->accumulation == 3);
    CHECK(plan->leaves == 12);
    CHECK(plan->tokens_per_step == 96 * 256);
    CHECK(plan->max_iters == 300);
    c.train.global_batch_size = 104;  // not a multiple of the trainers' micro-batches
    plan = make_plan(c);
    CHECK(plan->accumulation == 4);  // of one trainer; the others have 3
    CHECK(plan->leaves == 13);
    CHECK(plan->global_batch_size == 104);
    CHECK(plan->max_steps == 100);
    c.train.max_steps = 0;
    c.train.max_tokens = 10 * 104 * 256;
    CHECK(make_plan(c)->max_steps == 10);
    c.train.max_steps = 100, c.train.max_tokens = 0;
    c.train.global_batch_size = 100;
    CHECK(error_of(c) ==
          "train.global_batch_size = 100, which is not a multiple of train.micro_batch_size = 8: "
          "use 96 or 104");
    c.train.global_batch_size = 24;
    CHECK(error_of(c) ==
          "train.global_batch_size = 24 is less than 4 trainers x 8 samples: use 32 or more, or "
          "fewer trainers");
    c.train.global_batch_size = 5;
    CHECK(error_of(c).ends_with("use 8"));
  }

  TEST_CASE("plan: groups over several nodes take the largest waves that fit memory") {
    Config c = cluster(2, 2, full);
    c.train.global_batch_size = 4 * 8 * 7;  // seven micro-batches a trainer
    c.cluster.memory_per_trainer_gib = 4;
    auto plan = must(make_plan(c));
    CHECK(plan->wave == 4);
    CHECK(plan->wave_reason == "groups span nodes; all that accumulate");
    CHECK(plan->memory.total() == memory_with_wave(c, *plan, 4).total());
    CHECK(with_derived_values(c).parallel.wave == 4);
    const uint64_t two = memory_with_wave(c, *plan, 2).total();
    c.cluster.memory_per_trainer_gib = 1.001 * static_cast<double>(two) / (1u << 30);
    plan = make_plan(c);
    CHECK(plan->wave == 2);
    CHECK(plan->wave_reason == "groups span nodes; the most that fits a trainer's memory");
    c.cluster.memory_per_trainer_gib = 0;  // counts as 4 GiB
    c.cluster.device = DeviceKind::cuda;
    c.train.deterministic = false;
    CHECK(make_plan(c)->wave == 4);
    for (const Strategy alone : {Strategy::no_shard, Strategy::hybrid_shard}) {
      c.parallel.strategy = alone;
      c.parallel.group_nodes = 1;
      CHECK(make_plan(c)->wave == 1);
      CHECK(make_plan(c)->wave_reason == "no group spans nodes");
    }
    c.parallel.wave = 2;
    CHECK(make_plan(c)->wave == 2);
    c.parallel.wave = 3;
    CHECK(error_of(c) == "parallel.wave = 3 is not a power of two");
  }

  TEST_CASE("plan: RESHAPE-1: groups of another size have waves of their own, which fit memory") {
    Config c = cluster(4, 1, full);
    c.train.global_batch_size = 4 * 8 * 8;  // eight micro-batches a trainer
    auto plan = must(make_plan(c));
    REQUIRE(plan->topology.group_sizes == std::vector{1, 2, 3, 4});
    CHECK(plan->waves == std::vector<int64_t>{1, 8, 8, 8});
    const uint64_t room = memory_in_groups(c, *plan, 4, 8).total();
    c.cluster.memory_per_trainer_gib = 1.0001 * static_cast<double>(room) / (1u << 30);
    plan = make_plan(c);
    CHECK(plan->wave == 8);
    CHECK(plan->wave_of(4) == 8);
    CHECK(plan->wave_of(2) < 8);
    for (const int size : plan->topology.group_sizes) {
      const int64_t wave = plan->wave_of(size);
      CHECK(memory_in_groups(c, *plan, size, wave).total() <= memory_of_trainer(c));
      if (size > 1 && wave < 8)
        CHECK(memory_in_groups(c, *plan, size, 2 * wave).total() > memory_of_trainer(c));
    }
    c.parallel.wave = 4;  // where it does not fit, there is no group of that size
    plan = make_plan(c);
    for (const int64_t wave : plan->waves) CHECK(wave == 4);
  }

  TEST_CASE(
      "plan: a GPU keeps in host memory the first of none, inputs, state and both that fits") {
    Config c = cluster(1, 1, none);
    c.train.activation_checkpointing = Recompute::block;
    CHECK(must(make_plan(c))->offload == Offload::none);
    c.cluster.device = DeviceKind::cuda;
    const auto plan = must(make_plan(c));
    CHECK(plan->offload == Offload::none);
    CHECK(plan->offload_reason == "the memory of a trainer is not known");
    CHECK(plan->memory.host == 0);
    const auto gib_of = [&](Offload offload) {
      return static_cast<double>(memory_with_offload(c, *plan, offload).total()) / (1u << 30);
    };
    double before = 1e9;
    for (const Offload offload :
         {Offload::none, Offload::activations, Offload::optimizer, Offload::all}) {
      CAPTURE(to_string(offload));
      CHECK(gib_of(offload) < before);
      before = gib_of(offload);
      c.cluster.memory_per_trainer_gib = before * 1.0001;
      const auto fits = must(make_plan(c));
      CHECK(fits->offload == offload);
      CHECK(fits->offload_reason == (offload == Offload::none
                                         ? "all fits a trainer's memory"
                                         : "the first that fits a trainer's memory"));
      CHECK(fits->memory.total() == memory_with_offload(c, *plan, offload).total());
      CHECK((fits->memory.host > 0) == (offload != Offload::none));
      CHECK(with_derived_values(c).parallel.offload == offload);
    }
    c.cluster.memory_per_trainer_gib = before * 0.99;
    CHECK(error_of(c).starts_with("cluster.memory_per_trainer_gib: the model needs about "));
    // What is excluded is not chosen.
    c.cluster.memory_per_trainer_gib = gib_of(Offload::optimizer) * 1.0001;
    c.train.activation_checkpointing = Recompute::nothing;
    CHECK(offload_choices(c) == std::vector{Offload::none, Offload::optimizer});
    c.train.activation_checkpointing = Recompute::block;
    c.train.optimizer = Optimizer::muon;
    CHECK(offload_choices(c) == std::vector{Offload::none, Offload::activations});
    CHECK(error_of(c).starts_with("cluster.memory_per_trainer_gib: the model needs about "));
  }

  TEST_CASE("plan: parallel.offload names what a device, an optimizer or a block excludes") {
    Config c = cluster(1, 1, none);
    const auto errors = [&](Offload offload) {
      c.parallel.offload = offload;
      return error_of(c);
    };
    c.cluster.device = DeviceKind::cpu;
    CHECK(errors(Offload::none) == "no error");
    for (const Offload offload : {Offload::optimizer, Offload::activations, Offload::all})
      CHECK(errors(offload) ==
            "parallel.offload = \"" + std::string(to_string(offload)) +
                "\": only GPUs have memory of their own; a CPU trainer's state and activations are "
                "in host memory already");
    c.cluster.device = DeviceKind::cuda;
    CHECK(errors(Offload::optimizer) == "no error");
    for (const Recompute recompute : {Recompute::nothing, Recompute::mlp}) {
      c.train.activation_checkpointing = recompute;
      for (const Offload offload : {Offload::activations, Offload::all})
        CHECK(
            errors(offload).ends_with("\": without train.activation_checkpointing = true there is "
                                      "no block checkpointing, and a block's backward pass needs "
                                      "more than its input"));
    }
    c.train.activation_checkpointing = Recompute::block;
    CHECK(errors(Offload::all) == "no error");
    c.train.optimizer = Optimizer::muon;
    CHECK(errors(Offload::activations) == "no error");
    for (const Offload offload : {Offload::optimizer, Offload::all})
      CHECK(errors(offload).find("\": Muon multiplies matrices") != std::string::npos);
  }

  TEST_CASE("plan: a step copies each gradient and parameter once, each input out and in") {
    Config c = cluster(2, 1, full);
    c.cluster.device = DeviceKind::cuda;
    c.train.precision = DType::bf16;
    c.train.activation_checkpointing = Recompute::block;
    c.parallel.offload = Offload::all;
    const auto plan = must(make_plan(c));
    const ShardLayout layout = shard_layout(units_of(plan->shape), 2);
    const ModelShape& s = plan->shape;
    const auto inputs = [&](const Plan& of) {
      return static_cast<uint64_t>(of.accumulation * of.micro_batch_size * s.block_size * s.dim *
                                   (s.layers - 1) * 2 * 2);
    };
    // All but two blocks are gathered for each of the passes of a turn.
    REQUIRE(plan->accumulation == 1);
    const uint64_t blocks = layout.count[1] * static_cast<uint64_t>(s.layers - 2);
    CHECK(bytes_through_host(c, *plan) ==
          layout.total * 4 + (layout.total + blocks) * 2 + inputs(*plan));
    CHECK(plan->memory.state == 0);
    CHECK(plan->memory.host >= layout.total * (4 + 2));

    // On one GPU the same in one turn, but once a step if all parameters are there.
    c = cluster(1, 1, none);
    c.cluster.device = DeviceKind::cuda;
    c.train.precision = DType::bf16;
    c.parallel.offload = Offload::optimizer;
    c.train.global_batch_size = 4 * c.train.micro_batch_size;
    const ShardLayout whole = shard_layout(units_of(s), 1);
    for (const int64_t wave : {1, 2, 4}) {
      c.parallel.wave = wave;
      const uint64_t again = wave < 4 ? 0 : whole.count[1] * static_cast<uint64_t>(s.layers - 2);
      CHECK(bytes_through_host(c, *must(make_plan(c))) ==
            whole.total * 4 + (whole.total + again) * 2);
    }
  }

  TEST_CASE("plan: Llama-3-8B trains on one GPU with 24 GB") {
    Config c = cluster(1, 1, none);
    c.model.preset = "llama3-8b";
    c.cluster.device = DeviceKind::cuda;
    c.cluster.memory_per_trainer_gib = 24e9 / (1u << 30);
    c.train.precision = DType::bf16;
    c.train.activation_checkpointing = Recompute::block;
    c.train.micro_batch_size = 1;
    c.train.global_batch_size = 8;  // 64k tokens
    const auto plan = must(make_plan(c));
    CHECK(plan->offload == Offload::all);
    CHECK(plan->offload_reason == "the first that fits a trainer's memory");
    CHECK(plan->wave == 8);
    CHECK(plan->wave_reason ==
          "a unit's gradient leaves the GPU when all micro-batches have passed it");
    CHECK(plan->memory.total() < 24e9);
    MESSAGE("needs ", static_cast<double>(plan->memory.total()) / 1e9, " GB: parameters ",
            static_cast<double>(plan->memory.parameters) / 1e9, ", gradients ",
            static_cast<double>(plan->memory.gradients) / 1e9, ", activations ",
            static_cast<double>(plan->memory.activations) / 1e9, ", pinned ",
            static_cast<double>(plan->memory.host) / 1e9);
    // In several turns the sums of all units stay on the GPU.
    c.parallel.wave = 4;
    CHECK(error_of(c).starts_with("cluster.memory_per_trainer_gib: the model needs about "));
    c.parallel.wave = 0;
    c.train.global_batch_size = 7;
    CHECK(error_of(c).starts_with("cluster.memory_per_trainer_gib: the model needs about "));
  }

  TEST_CASE("plan: a step sends (K / wave) (2 + 2 + 4) bytes a parameter in bf16, or 6 K alone") {
    Config c = cluster(8, 1, full);
    c.model.preset = "llama2-7b";
    c.model.layers = 126;
    c.train.precision = DType::bf16;
    constexpr int64_t K = 8;
    c.train.global_batch_size = 8 * 8 * K;
    const auto plan = must(make_plan(c));
    const double others = static_cast<double>(plan->parameters) * 7 / 8;
    for (const int64_t wave : {1, 2, 4, 8}) {
      CAPTURE(wave);
      const double bytes = static_cast<double>(K / wave) * (wave > 1 ? 8 : 6);
      CHECK(static_cast<double>(bytes_in_group(c, *plan, wave)) ==
            doctest::Approx(bytes * others).epsilon(0.02));
    }
  }

  TEST_CASE(
      "plan: experts stay where that sends fewer bytes between nodes, and shards are whole ones") {
    Config c = cluster(4, 1, full);
    c.model.preset = "olmoe-1b-7b";
    c.train.precision = DType::bf16;
    c.train.micro_batch_size = 1;
    c.train.global_batch_size = 4;  // one micro-batch a trainer
    c.cluster.memory_per_trainer_gib = 2000;
    const auto reason = [&] { return must(make_plan(c))->experts_reason; };
    auto plan = must(make_plan(c));
    CHECK(plan->experts == ExpertPlacement::resident);
    CHECK(plan->experts_reason == "sends fewer bytes between nodes");
    CHECK(plan->expert_shards(4) == 4);
    CHECK(plan->expert_shards(3) == 1);
    CHECK(plan->memory.exchange > 0);
    CHECK(with_derived_values(c).parallel.experts == ExpertPlacement::resident);
    // 2,048 values of each of 4,096 tokens in 16 layers, three times to each trainer with some of its eight
    // experts, and twice back of each expert.
    double none = 1;
    for (int i = 0; i < 8; ++i) none *= (48.0 - i) / (64 - i);
    const double rows = 16.0 * 4096 * (3 * 4 * (1 - none) + 2 * 8) * 2048 * 2 * 3 / 4;
    Plan gathered = *plan;
    gathered.experts = ExpertPlacement::gathered;
    // Gathered twice, of two layers once, and reduced, two bytes each.
    const double of_experts = (2 * 14 + 2 + 16) * 2 * 64.0 * 3 * 2048 * 1024 * 3 / 4;
    const auto sent = [&](const Plan& with) {
      return static_cast<double>(bytes_in_group(c, with, 1));
    };
    CHECK(sent(gathered) - sent(*plan) == doctest::Approx(of_experts - rows).epsilon(0.02));
    c.train.global_batch_size = 4 * 32;
    plan = make_plan(c);
    CHECK(plan->wave == 32);
    CHECK(plan->experts == ExpertPlacement::gathered);
    c.parallel.experts = ExpertPlacement::resident;
    plan = make_plan(c);
    CHECK(plan->experts == ExpertPlacement::resident);
    CHECK(plan->experts_reason == "parallel.experts is set");
    c = cluster(3, 1, full);
    c.model.preset = "olmoe-1b-7b";
    c.train.micro_batch_size = 1;
    c.cluster.memory_per_trainer_gib = 2000;
    CHECK(reason() == "the shards of a group cannot be whole experts");
    c.parallel.experts = ExpertPlacement::resident;
    CHECK(
        error_of(c).find("the 3 trainers of a group cannot each have as many whole experts of 64; "
                         "use another") != std::string::npos);
    c.parallel.strategy = Strategy::no_shard;
    CHECK(reason() == "a group is one trainer, which has all experts");
    c = cluster(1, 4, full);
    c.model.preset = "moe-micro";
    CHECK(reason() == "no group spans nodes");
    c.model.preset = "micro";
    c.parallel.experts = ExpertPlacement::resident;
    CHECK(error_of(c) == "parallel.experts = \"resident\", but the model has no experts");
  }

  TEST_CASE("plan: max_iters follows the paper's formula, and the first limit ends the run") {
    Config c = cluster(2, 8, automatic);
    c.model.preset = "tinyllama";
    c.train.max_steps = 0;
    c.train.max_tokens = 300'000'000'000;
    auto plan = must(make_plan(c));
    // 300e9 / 16 devices / (8 x 2048) tokens an iter
    CHECK(plan->max_iters == 1'144'409);
    CHECK(plan->max_steps == 1'144'409);
    c.train.global_batch_size = 1024;
    plan = make_plan(c);
    CHECK(plan->accumulation == 8);
    CHECK(plan->max_steps == 143'051);
    CHECK(plan->max_iters == 143'051 * 8);
    c.train.max_steps = 10;
    c.train.max_iters = 79;
    CHECK(make_plan(c)->max_steps == 9);
    c.train.max_iters = 7;
    CHECK(error_of(c).starts_with("train.max_iters = 7 is less than one step of 1024 samples"));
    c.train.max_iters = c.train.max_steps = c.train.max_tokens = 0;
    CHECK(error_of(c).find("the run has no end") != std::string::npos);
    c.train.max_steps = 1'000'000'000'000;
    c.train.micro_batch_size = 4096;
    c.train.global_batch_size = 0;
    c.model.block_size = 1'000'000;
    CHECK(error_of(c).find("more than can be counted") != std::string::npos);
  }

  TEST_CASE("plan: the learning rate equals that of the PyTorch baseline") {
    Config c = cluster(1, 1, full);
    c.train.max_steps = 20;
    c.train.warmup_iters = 5;
    const auto plan = must(make_plan(c));
    const LearningRate& rate = plan->learning_rate;
    // lr_at(s) of the tests' PyTorch baseline with lr 4e-4, min_lr 4e-5, warmup 5, steps 20
    CHECK(rate.at(0) == 8e-05);
    CHECK(rate.at(4) == 0.0004);
    CHECK(rate.at(5) == 0.0004);
    CHECK(rate.at(6) == doctest::Approx(0.00039606656813208504).epsilon(1e-14));
    CHECK(rate.at(12) == doctest::Approx(0.00023881512338817766).epsilon(1e-14));
    CHECK(rate.at(19) == doctest::Approx(4.393343186791498e-05).epsilon(1e-14));
    CHECK(rate.at(20) == 4e-5);
    CHECK(rate.at(1000) == 4e-5);
    // From step 11 (the eleventh) on, the schedule is that of another peak.
    LearningRate changed = rate;
    changed.changes = {{11, 2e-4}, {16, 8e-4}};
    c.train.learning_rate = 2e-4;
    const LearningRate low = make_plan(c)->learning_rate;
    c.train.learning_rate = 8e-4;
    const LearningRate high = make_plan(c)->learning_rate;
    for (int64_t step = 0; step < 30; ++step)
      CHECK(changed.at(step) == (step < 10 ? rate : step < 15 ? low : high).at(step));
  }

  TEST_CASE("plan: warm-up is in micro-batches, rounded up to steps, and shorter than the run") {
    Config c = cluster(1, 1, full);
    c.train.global_batch_size = 24;  // 3 micro-batches
    c.train.warmup_iters = 7;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 3);
    c.train.warmup_iters = -1;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 5);
    c.train.max_steps = 1'000'000;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 2000);
    c.train.max_steps = 1;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 0);
    CHECK(make_plan(c)->learning_rate.at(0) == 4e-4);
    c.train.max_steps = 2;
    c.train.warmup_iters = 6;
    CHECK(error_of(c) == "train.warmup_iters = 6 takes 2 steps, but the whole run has only 2");
    c.train.warmup_iters = 0;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 0);
  }

  TEST_CASE("plan: warm-up in steps or tokens") {
    Config c = cluster(1, 1, full);
    c.train.max_steps = 20;
    const int64_t tokens = make_plan(c)->tokens_per_step;
    c.train.warmup_tokens = 3 * tokens + 1;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 4);
    c.train.warmup_tokens = 0;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 0);
    c.train.warmup_steps = 7;
    CHECK(error_of(c) == "train.warmup_tokens and train.warmup_steps exclude each other: set one");
    c.train.warmup_tokens = -1;
    CHECK(make_plan(c)->learning_rate.warmup_steps == 7);
    c.train.warmup_steps = 20;
    CHECK(error_of(c) == "train.warmup_steps = 20 takes 20 steps, but the whole run has only 20");
  }

  TEST_CASE("plan: schedules other than a cosine") {
    Config c = cluster(1, 1, full);
    c.train.max_steps = 40;
    c.train.warmup_steps = 4;
    c.train.learning_rate = 1e-3;
    c.train.min_learning_rate = 1e-4;
    const auto rate = [&](int64_t step) { return make_plan(c)->learning_rate.at(step); };
    const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-14); };
    for (const Schedule schedule : {Schedule::linear, Schedule::polynomial, Schedule::wsd,
                                    Schedule::constant, Schedule::cosine}) {
      c.train.schedule = schedule;
      CHECK(rate(0) == 2.5e-4);
      CHECK(rate(3) == 1e-3);
      CHECK(rate(4) == 1e-3);
      CHECK(rate(40) == (schedule == Schedule::constant ? 1e-3 : 1e-4));
    }
    c.train.schedule = Schedule::linear;
    CHECK(rate(13) == near(1e-4 + 9e-4 * 27 / 36));
    c.train.schedule = Schedule::polynomial;
    CHECK(rate(13) == near(1e-4 + 9e-4 * 27 / 36 * 27 / 36));
    c.train.schedule = Schedule::wsd;  // the last 4 of 40 steps
    CHECK(rate(35) == 1e-3);
    CHECK(rate(36) == near(1e-4 + 9e-4 * 3 / 4));
    CHECK(rate(38) == near(1e-4 + 9e-4 / 4));
    CHECK(rate(39) == 1e-4);
    c.train.decay_steps = 20;
    CHECK(rate(19) == 1e-3);
    CHECK(rate(20) == near(1e-4 + 9e-4 * 19 / 20));
    CHECK(rate(25) == near(1e-4 + 9e-4 * 14 / 20));
    // A cosine and a linear decay may begin late, too; and with another end the same steps of the
    // constant part stay as they are.
    c.train.schedule = Schedule::cosine;
    CHECK(rate(29) == near(1e-4 + 9e-4 / 2));
    c.train.max_steps = 60;
    CHECK(rate(30) == 1e-3);
    c.train.schedule = Schedule::constant;
    CHECK(rate(59) == 1e-3);
    c.train.decay_steps = 57;
    CHECK(error_of(c) == "train.decay_steps = 57, but only 56 steps follow the warm-up");
  }

  TEST_CASE("plan: the first and the last step of each schedule") {
    Config c = cluster(1, 1, full);
    c.train.max_steps = 20;
    c.train.learning_rate = 1e-3;
    c.train.min_learning_rate = 1e-4;
    const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-14); };
    for (const int64_t warmup : {0, 4})
      for (const Schedule schedule : {Schedule::cosine, Schedule::linear, Schedule::polynomial,
                                      Schedule::wsd, Schedule::constant}) {
        INFO("warmup = ", warmup, ", schedule = ", static_cast<int>(schedule));
        c.train.warmup_steps = warmup;
        c.train.schedule = schedule;
        c.train.decay_steps = -1;
        const auto rate = [&](int64_t step) { return make_plan(c)->learning_rate.at(step); };
        const bool constant = schedule == Schedule::constant, wsd = schedule == Schedule::wsd;
        CHECK(rate(0) == (warmup == 0 ? 1e-3 : 2.5e-4));
        CHECK(rate(warmup) == 1e-3);
        // Without a length of its own a decay would end one step after the run.
        const double length = 20.0 - static_cast<double>(warmup), x = (length - 1) / length;
        const double part = constant ? 1
                            : wsd    ? 0
                            : schedule == Schedule::cosine
                                ? (1 + std::cos(std::numbers::pi * x)) / 2
                            : schedule == Schedule::linear ? 1 - x
                                                           : (1 - x) * (1 - x);
        CHECK(rate(19) == near(1e-4 + 9e-4 * part));
        for (const int64_t decay : {1, 4, 16}) {
          CAPTURE(decay);
          c.train.decay_steps = decay;
          CHECK(rate(19 - decay) == 1e-3);
          CHECK(rate(19) == (constant ? 1e-3 : 1e-4));
          if (decay == 4) {
            CHECK(rate(16) == near(1e-4 + 9e-4 * (constant ? 1
                                                  : schedule == Schedule::cosine
                                                      ? (1 + std::cos(std::numbers::pi / 4)) / 2
                                                  : schedule == Schedule::polynomial ? 9.0 / 16
                                                                                     : 3.0 / 4)));
          }
        }
        c.train.decay_steps = 0;
        CHECK(rate(19) == 1e-3);
      }
  }

  TEST_CASE("memory: NCCL's connections count on GPUs: pairs for sums in tree order, else rings") {
    Config c = cluster(4, 8, hybrid, 2);
    const auto shape = must(model_shape(c));
    const auto mib = [&](int shards, int groups) {
      return memory_estimate(c, *shape, Sharding::full_shard, shards, groups, groups).nccl >> 20;
    };
    CHECK(mib(16, 2) == 0);
    c.cluster.device = DeviceKind::cuda;
    CHECK(mib(1, 1) == 0);
    CHECK(mib(8, 1) == 256 + 12 * 32 * 7);
    CHECK(mib(16, 2) == 256 + 12 * (32 * 7 + 2 * 8) + 256 + 12 * 2);
    CHECK(mib(1, 32) == 256 + 12 * (32 * 7 + 2 * 24));  // eight groups on each node
    c.train.deterministic = false;
    CHECK(mib(16, 2) == 3 * 256);
  }

  TEST_CASE("memory: more shards and recomputation need less, keeping parameters needs more") {
    Config c = cluster(1, 1, full);
    c.model.preset = "tinyllama";
    const auto shape = model_shape(c);
    const auto estimate = [&](Sharding sharding, int shards) {
      return memory_estimate(c, *shape, sharding, shards, 1, 1);
    };
    CHECK(estimate(Sharding::full_shard, 8).total() < estimate(Sharding::full_shard, 4).total());
    CHECK(estimate(Sharding::full_shard, 8).total() < estimate(Sharding::shard_grad_op, 8).total());
    CHECK(estimate(Sharding::no_shard, 1).state ==
          2 * 12 * shard_layout(units_of(*shape), 1).total);
    const uint64_t kept = estimate(Sharding::full_shard, 8).activations;
    c.train.activation_checkpointing = Recompute::mlp;
    const uint64_t without_mlp = estimate(Sharding::full_shard, 8).activations;
    CHECK(without_mlp < kept);
    c.train.activation_checkpointing = Recompute::block;
    CHECK(estimate(Sharding::full_shard, 8).activations < without_mlp);
    c.cluster.device = DeviceKind::cuda;
    CHECK(estimate(Sharding::no_shard, 1).state == 12 * shard_layout(units_of(*shape), 1).total);
    const uint64_t two_bytes = estimate(Sharding::full_shard, 8).activations;
    c.train.precision = DType::f32;
    CHECK(estimate(Sharding::full_shard, 8).activations > two_bytes);
  }

  TEST_CASE(
      "mfu: TinyLlama needs 7.708 GFLOP per token by PaLM's convention, 6.760 counted causally") {
    Config c;
    c.model.preset = "tinyllama";
    const auto shape = model_shape(c);
    CHECK(flops_per_token(*shape).palm == doctest::Approx(7.70759e9).epsilon(1e-6));
    CHECK(flops_per_token(*shape).causal == doctest::Approx(6.76017e9).epsilon(1e-6));
    CHECK(mfu(*shape, 51'325, 1, 989e12) == doctest::Approx(0.4).epsilon(1e-4));
    CHECK(mfu(*shape, 51'325, 1, 0) == 0);
  }

  TEST_CASE("flops: heads of their own width and a window count, per token") {
    ModelShape s{.dim = 8,
                 .hidden = 16,
                 .layers = 1,
                 .heads = 2,
                 .kv_heads = 1,
                 .vocab = 10,
                 .block_size = 12};
    s.head_width = 6;
    // q and o: 8 x 12 each; k and v: 8 x 6; gate, up and down: 8 x 16; logits: 8 x 10.
    const double products = 2 * 96 + 2 * 48 + 3 * 128 + 80;
    CHECK(flops_per_token(s).causal == doctest::Approx(6 * products + 12 * 12 * 6));
    s.sliding_window = 3;
    // Three tokens are seen, but the first one sees one and the second one two.
    CHECK(flops_per_token(s).causal == doctest::Approx(6 * products + 12 * 12 * (3 - 9 / 24.0)));
    s.sliding_window = 100;  // more than a block
    CHECK(flops_per_token(s).causal == doctest::Approx(6 * products + 12 * 12 * 6));
  }

  TEST_CASE("nodes that may join decide what is sized before") {
    Config c = cluster(2, 2, hybrid, 1);
    c.cluster.spares = 1;
    c.train.global_batch_size = 12 * c.train.micro_batch_size;
    CHECK_FALSE(may_grow(c));
    CHECK(must(plan_topology(c))->most_groups == 2);
    c.cluster.max_nodes = 7;
    CHECK(may_grow(c));
    const Topology t = *must(plan_topology(c));
    CHECK(t.groups == 2);
    CHECK(t.most_groups == 6);  // one of seven stays a spare
    CHECK(t.most_ranks() == 7);
    CHECK(must(make_plan(c))->memory.total() >=
          must(make_plan(cluster(2, 2, hybrid, 1)))->memory.total());
    c.cluster.max_nodes = 2;
    CHECK(error_of(c) ==
          "cluster.max_nodes = 2 is less than cluster.nodes + cluster.spares = 3, the nodes with "
          "which the run begins");
    c.cluster.max_nodes = 8;
    CHECK(error_of(c) ==
          "cluster.max_nodes = 8 makes 14 trainers, but train.global_batch_size has only 12 "
          "micro-batches of " +
              std::to_string(c.train.micro_batch_size) + " samples: use a batch of " +
              std::to_string(14 * c.train.micro_batch_size) + " or more, or fewer nodes");
    Config alone = cluster(1, 1, none);
    CHECK(peer_every_steps(alone, *must(plan_topology(alone))) == 0);
    alone.cluster.max_nodes = 2;
    CHECK(peer_every_steps(alone, *must(plan_topology(alone))) > 0);
    // A group of two nodes needs two that join.
    Config pairs = cluster(4, 1, hybrid, 2);
    pairs.cluster.max_nodes = 7;
    CHECK(must(plan_topology(pairs))->most_groups == 3);
  }
}
