#include "actors/trainer/engine_setup.hpp"

#include <algorithm>

#include "model/program/buffer_plan.hpp"

namespace simplescale {

EngineOptions engine_options(const Config& config, const Plan& plan) {
  EngineOptions o;
  o.shape = plan.shape;
  o.precision = config.train.precision;
  o.micro_batch_size = static_cast<int>(plan.micro_batch_size);
  o.leaves = static_cast<int>(plan.leaves);
  const std::vector<BatchSchedule::Steps>& runs = plan.batch.runs();
  for (size_t i = 0; i + 1 < runs.size(); ++i)
    o.warmup.push_back(
        {runs[i + 1].first - 1,
         static_cast<int>(runs[i].size / static_cast<uint64_t>(plan.micro_batch_size))});
  o.wave = static_cast<int>(plan.wave);
  o.sharding = plan.topology.sharding;
  o.grad_clip = static_cast<float>(config.train.grad_clip);
  o.weight_decay = static_cast<float>(config.train.weight_decay);
  o.beta1 = static_cast<float>(config.train.betas[0]);
  o.beta2 = static_cast<float>(config.train.betas[1]);
  o.eps = static_cast<float>(config.train.eps);
  o.optimizer = config.train.optimizer;
  o.muon_momentum = static_cast<float>(config.train.muon_momentum);
  o.moments = config.train.moments_precision;
  o.ema_decay = config.train.ema_decay;
  o.groups = config.train.group;
  o.z_loss = static_cast<float>(config.train.z_loss);
  o.fp8 = config.train.fp8;
  o.seed = static_cast<uint64_t>(config.run.seed);
  o.memory_every_steps = static_cast<uint64_t>(config.checkpoint.memory_every_steps);
  return o;
}

Program first_program(const Config& config, const Plan& plan) {
  const EngineOptions options = engine_options(config, plan);
  const auto shards = static_cast<size_t>(plan.topology.shards),
             groups = static_cast<size_t>(plan.topology.groups);
  const bool host = config.cluster.device != DeviceKind::cuda;
  return step_program({.units = units_of(plan.shape).size(),
                       .tied = plan.shape.tie_embeddings,
                       .turns = Shares::even(leaves_of(options, 1), groups, shards,
                                             static_cast<uint64_t>(options.wave))
                                    .turns(0)},
                      buffer_plan(options, groups, shards, host, false));
}

BackendOptions backend_options(const Config& config, const Plan& plan, int threads) {
  BackendOptions o;
  o.shape = plan.shape;
  o.micro_batch_size = static_cast<int>(plan.micro_batch_size);
  o.precision = config.train.precision;
  o.recompute = config.train.activation_checkpointing;
  o.frames = static_cast<int>(plan.wave);
  o.threads = threads;
  o.deterministic = config.train.deterministic;
  o.z_loss = static_cast<float>(config.train.z_loss);
  o.muon = config.train.optimizer == Optimizer::muon;
  o.fp8 = config.train.fp8;
  return o;
}

DataPlaneOptions plane_options(const Config& config, const Plan& plan,
                               std::optional<DeviceTransport> device) {
  DataPlaneOptions o;
  o.ranks_max = std::max(o.ranks_max, plan.topology.most_ranks());
  o.communicators = 6;  // shard, replicate, transfers; twice, for the generation before
  o.trusted_networks = config.transport.trusted_networks;
  o.arena_bytes = size_t{8} << 20;
  if (device == DeviceTransport::nccl) return o;
  const auto groups = static_cast<size_t>(plan.topology.groups),
             shards = static_cast<size_t>(plan.topology.shards);
  const size_t total = shard_layout(units_of(plan.shape), shards).total;
  const EngineOptions options = engine_options(config, plan);
  size_t most = 0;  // with fewer groups, each has more leaves and needs more partial sums
  for (size_t g = 1; g <= groups; ++g)
    most = std::max(
        most, buffer_plan(options, g, shards, !device, false).bytes(config.train.precision, total));
  o.arena_bytes += most;
  return o;
}

}  // namespace simplescale
