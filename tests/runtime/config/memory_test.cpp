// The memory that `config show` tells, against replays of the programs of every trainer.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "runtime/config/offload.hpp"
#include "runtime/program/replay.hpp"

using namespace simplescale;

namespace {

struct Case {
  Config config;
  ModelShape shape;
  Sharding sharding = Sharding::full_shard;
  int groups = 1, shards = 1, leaves = 1;
  bool cuda() const { return config.cluster.device == DeviceKind::cuda; }
};

Case some_case(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Case c;
  c.shape = {.dim = 32 * (1 + below(4)),
             .hidden = 48 * (1 + below(4)),
             .layers = 1 + below(4),
             .heads = 2,
             .kv_heads = 2,
             .vocab = 64 * (1 + below(100)),
             .block_size = 8};
  c.shape.tie_embeddings = below(2) == 0;
  c.groups = 1 + below(4);
  c.shards = 1 + below(5);
  if (c.shards == 1) c.sharding = Sharding::no_shard;
  if (c.shards > 1 && below(2) == 0) c.sharding = Sharding::shard_grad_op;
  c.leaves = 1 + below(80);
  TrainConfig& train = c.config.train;
  train.micro_batch_size = 1 + below(2);
  train.precision = below(2) == 0 ? DType::f32 : DType::bf16;
  train.activation_checkpointing = below(2) == 0 ? Recompute::nothing : Recompute::block;
  if (below(3) == 0)
    train.batch_warmup.push_back({1000, train.micro_batch_size * (1 + below(c.leaves))});
  if (below(3) == 0) train.optimizer = Optimizer::muon;
  c.config.cluster.device = below(2) == 0 ? DeviceKind::cpu : DeviceKind::cuda;
  if (!c.cuda() && below(2) == 0)
    c.shape.experts = {.count = 1 + below(8),
                       .per_token = 1,
                       .hidden = 16 * (1 + below(6)),
                       .shared = below(2),
                       .dense_layers = below(static_cast<int>(c.shape.layers))};
  if (below(2) == 0) c.config.parallel.experts = ExpertPlacement::resident;
  c.config.parallel.offload = Offload::none;
  if (c.cuda() && train.optimizer == Optimizer::adamw && below(2) == 0)
    c.config.parallel.offload = Offload::optimizer;
  c.config.cluster.balance = below(2) == 0 ? Balance::automatic : Balance::even;
  c.config.parallel.wave = 1 << below(4);
  return c;
}

/// The most that a trainer takes, in any group of any number of groups, in any step.
struct Most {
  BufferBytes bytes;
  bool full_wave = false;  // some turn is as wide as a wave may be
};

Most replay_all(const Case& c, std::mt19937& random) {
  EngineOptions options{.shape = c.shape,
                        .precision = c.config.train.precision,
                        .micro_batch_size = static_cast<int>(c.config.train.micro_batch_size),
                        .leaves = c.leaves,
                        .wave = static_cast<int>(c.config.parallel.wave),
                        .sharding = c.sharding,
                        .state_in_host = offloads_state(c.config.parallel.offload),
                        .resident_experts = c.config.parallel.experts == ExpertPlacement::resident,
                        .optimizer = c.config.train.optimizer};
  for (const BatchStage& stage : c.config.train.batch_warmup)
    options.warmup.push_back(
        {1, static_cast<int>(stage.global_batch_size / c.config.train.micro_batch_size)});
  const std::vector<Unit> units = units_of(c.shape);
  const auto shards = static_cast<size_t>(c.shards);
  const ShardLayout layout = shard_layout(units, shards);
  Most most;
  for (size_t groups = 1; groups <= static_cast<size_t>(c.groups); ++groups) {
    options.weights.clear();
    while (balances(c.config) && options.weights.size() < groups)
      options.weights.push_back(1 + random() % 1000);
    for (const uint64_t step : {1, 2}) {
      const Shares shares = shares_of(options, leaves_of(options, step), groups, shards);
      const BufferPlan plan = buffer_plan(options, groups, shards, !c.cuda(), false);
      const BufferBytes planned = plan.bytes(options.precision, layout.total);
      // No task's: Muon's matrices, and a state in device memory.
      most.bytes.muon = std::max(most.bytes.muon, planned.muon);
      most.bytes.state = std::max(most.bytes.state, planned.state);
      most.bytes.exchange = std::max(most.bytes.exchange, planned.exchange);
      for (size_t group = 0; group < groups; ++group) {
        ProgramOptions order =
            program_options(units, c.shape.tie_embeddings, has_resident_experts(options, shards));
        const std::vector<int> turns = order.turns = shares.turns(group);
        most.full_wave |= turns[0] == options.wave;
        const BufferBytes bytes =
            replayed_bytes(step_program(order, plan), layout, options.precision, shares, group);
        for (const auto kind : {&BufferBytes::gather, &BufferBytes::gradient, &BufferBytes::sums,
                                &BufferBytes::slices})
          most.bytes.*kind = std::max(most.bytes.*kind, bytes.*kind);
      }
    }
  }
  return most;
}

}  // namespace

TEST_SUITE("config memory") {
  TEST_CASE("memory: config show tells the peak of the buffers that replayed programs take") {
    std::mt19937 random(3);
    for (int i = 0; i < 400; ++i) {
      const Case c = some_case(random);
      INFO("case ", i, ": ", c.groups, " groups, ", c.shards, " shards, ", c.leaves,
           " leaves, wave ", c.config.parallel.wave);
      const MemoryEstimate told =
          memory_estimate(c.config, c.shape, c.sharding, c.shards, c.groups, c.leaves);
      const Most most = replay_all(c, random);
      const uint64_t peak =
          most.bytes.gradient + most.bytes.sums + most.bytes.slices + most.bytes.muon;
      // Blocks of a model with experts differ, and no step may have the largest one in each buffer.
      CHECK(told.parameters >= most.bytes.gather);
      const bool equal_blocks = c.shape.experts.count == 0;
      if (equal_blocks) CHECK(told.parameters == most.bytes.gather);
      if (c.cuda()) CHECK(told.state == most.bytes.state);
      CHECK(told.exchange == most.bytes.exchange);
      CHECK(told.gradients - told.messages >= peak);
      // Else the plan has buffers for wider waves, or for more partial sums, than there are.
      if (equal_blocks && (!balances(c.config) || c.groups == 1) &&
          (most.full_wave || c.shards == 1) && std::has_single_bit(static_cast<unsigned>(c.shards)))
        CHECK(told.gradients - told.messages == peak);
    }
  }
}
