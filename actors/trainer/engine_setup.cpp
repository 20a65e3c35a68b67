#include "actors/trainer/engine_setup.hpp"

#include <algorithm>

#include "runtime/config/offload.hpp"
#include "runtime/program/buffer_plan.hpp"

namespace simplescale {

EngineOptions engine_options(const Config& config, const Plan& plan, int shards) {
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
  o.wave = static_cast<int>(plan.wave_of(shards));
  o.sharding = plan.topology.sharding;
  o.state_in_host = offloads_state(plan.offload);
  o.inputs_in_host = offloads_inputs(plan.offload);
  o.resident_experts = plan.experts == ExpertPlacement::resident;
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
  o.router_bias_rate = static_cast<float>(config.train.router_bias_rate);
  o.fp8 = config.train.fp8;
  o.seed = static_cast<uint64_t>(config.run.seed);
  o.memory_every_steps = static_cast<uint64_t>(config.checkpoint.memory_every_steps);
  return o;
}

std::vector<Program> first_programs(const Config& config, const Plan& plan) {
  const EngineOptions options = engine_options(config, plan, plan.topology.shards);
  const auto shards = static_cast<size_t>(plan.topology.shards),
             groups = static_cast<size_t>(plan.topology.groups);
  const bool host = config.cluster.device != DeviceKind::cuda;
  const Shares shares = shares_of(options, leaves_of(options, 1), groups, shards);
  const BufferPlan buffers = buffer_plan(options, groups, shards, host, false);
  ProgramOptions of = program_options(units_of(plan.shape), plan.shape.tie_embeddings,
                                      has_resident_experts(options, shards));
  std::vector<std::vector<int>> turns;
  std::vector<Program> programs;
  for (uint64_t group = 0; group < groups; ++group) {
    of.turns = shares.turns(group);
    if (std::ranges::find(turns, of.turns) != turns.end()) continue;
    turns.push_back(of.turns);
    programs.push_back(step_program(of, buffers));
  }
  return programs;
}

/// Trainers with the same program execute it at the same time, so one of each is replayed.
Result<std::vector<TimedTask>> first_step(const Config& config, const Plan& plan,
                                          const Speeds& speeds) {
  const std::vector<Program> programs = first_programs(config, plan);
  std::vector<const Program*> of_ranks;
  for (const Program& program : programs) of_ranks.push_back(&program);
  const bool recomputes = config.train.activation_checkpointing == Recompute::block;
  SS_ASSIGN(Timeline timeline,
            replay(of_ranks, 1,
                   task_costs(engine_options(config, plan, plan.topology.shards),
                              static_cast<size_t>(plan.topology.groups),
                              static_cast<size_t>(plan.topology.shards), recomputes, speeds)));
  return std::move(timeline[0]);
}

BackendOptions backend_options(const Config& config, const Plan& plan, int shards, int threads) {
  BackendOptions o;
  o.shape = plan.shape;
  o.micro_batch_size = static_cast<int>(plan.micro_batch_size);
  o.precision = config.train.precision;
  o.recompute = config.train.activation_checkpointing;
  o.frames = static_cast<int>(plan.wave_of(shards));
  o.expert_shards = plan.expert_shards(shards);
  o.threads = threads;
  o.deterministic = config.train.deterministic;
  o.z_loss = static_cast<float>(config.train.z_loss);
  o.router_z_loss = static_cast<float>(config.train.router_z_loss);
  o.router_balance_loss = static_cast<float>(config.train.router_balance_loss);
  o.muon = config.train.optimizer == Optimizer::muon;
  o.inputs_in_host = offloads_inputs(plan.offload);
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
  const auto needed = [&](int size) {
    const auto groups = static_cast<size_t>(plan.topology.most_groups_of(size)),
               shards = static_cast<size_t>(plan.topology.shards_of(size));
    const size_t total = shard_layout(units_of(plan.shape), shards).total;
    return most_buffers(engine_options(config, plan, plan.topology.shards_of(size)), groups, shards,
                        !device, false, balances(config))
        .bytes(config.train.precision, total)
        .total();
  };
  size_t most = 0;
  for (const int size : plan.topology.group_sizes) most = std::max(most, needed(size));
  o.arena_pages_bytes = o.arena_bytes + needed(plan.topology.group_nodes);
  o.arena_bytes += most;
  return o;
}

}  // namespace simplescale
