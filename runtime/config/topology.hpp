// Plans a run: groups, shards and ranks (Topology); accumulation, steps, learning rate and memory
// (Plan). Pure functions of the config, so every process computes the same plan, and the supervisor
// can plan a layout that does not exist yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/training/batch_schedule.hpp"
#include "runtime/training/learning_rate.hpp"
#include "runtime/training/mixture.hpp"
#include "runtime/training/names.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/skipped_samples.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

struct TrainerPlace {
  int node = 0, slot = 0;
  int rank = 0;  // group * shards + shard
  int group = 0, shard = 0;
  std::string name() const { return trainer_name(node_name(node), slot); }
};

struct Topology {
  Strategy strategy = Strategy::full_shard;  // never automatic
  Sharding sharding = Sharding::full_shard;
  int nodes = 1, trainers_per_node = 1;
  int group_nodes = 1;  // nodes per group; no_shard: 1, and several groups share a node
  int groups = 1;       // G
  int shards = 1;       // S, trainers per group
  /// Nodes per group in the shapes that a generation may have, ascending: group_nodes and, unless
  /// cluster.prefer forbids it, all others whose trainers have memory for their shard. Groups that
  /// share a node, or are one node, keep their size: a lost node costs no other one.
  std::vector<int> group_sizes = {1};
  int most_groups = 1;                 // once cluster.max_nodes nodes, less the spares, train
  std::vector<TrainerPlace> trainers;  // in rank order
  std::string reason;                  // for this group size; `config show` prints it
  int world() const { return groups * shards; }
  /// The most ranks of a Collective: a group, or the replicas of a shard and one more that sends
  /// them its state.
  int most_ranks() const;
  /// The shards of a group of so many nodes.
  int shards_of(int nodes_of_group) const { return shards / group_nodes * nodes_of_group; }
  /// The most groups of that size.
  int most_groups_of(int nodes_of_group) const {
    return most_groups * group_nodes / nodes_of_group;
  }
  /// Sets of nodes that each hold whole copies of the model: while one of them is left, a lost node
  /// costs no step.
  int domains() const { return nodes / group_nodes; }
};

/// bad_config: the nodes do not form whole groups; fewer nodes than one group; fewer groups than
/// min_groups; more shards or groups than a Collective has ranks; the model does not fit memory_per_trainer_gib.
Result<Topology> plan_topology(const Config& config);

/// The most nodes of the run, spares included: cluster.max_nodes, or those with which it begins.
int most_nodes(const Config& config);
/// True if further nodes may join the run while it trains.
bool may_grow(const Config& config);
/// The steps between copies to the memory of other nodes; 0: none. The value of -1 is 10 if there
/// is only one domain, but another node that can keep copies.
int64_t peer_every_steps(const Config& config, const Topology& topology);
/// The fewest nodes of which a group can consist so that the model fits its trainers' memory; 0: it
/// does not fit, or a key is wrong.
int smallest_group(const Config& config);

/// True if groups may get shares by their speeds: cluster.balance, on CPUs. A GPU's own time is not
/// measured.
bool balances(const Config& config);

/// Bytes that a trainer may need: cluster.memory_per_trainer_gib, or 4 GiB if it is unknown.
uint64_t memory_of_trainer(const Config& config);

/// Bytes that one trainer needs, by purpose. The formulas are in memory.cpp.
struct MemoryEstimate {
  uint64_t state = 0;       // parameters, two moments and, with train.ema_decay, the average of
                            // its shard; two sides on a CPU
  uint64_t parameters = 0;  // gathered units in compute precision
  uint64_t gradients = 0;   // gradient buffers of units, and the fp32 sums of its shard
  uint64_t staged_gradients = 0;  // instead, if collectives of GPUs go through host memory
  uint64_t messages = 0;          // what collectives receive: a part of these gradients
  uint64_t activations = 0;       // of one micro-batch, logits included
  uint64_t exchange = 0;          // of tokens for resident experts
  uint64_t nccl = 0;              // NCCL's connections of a GPU; by its sources, not measured
  uint64_t host = 0;  // parallel.offload: pinned host memory, beside the state's shared memory
  /// Without `host`.
  uint64_t total() const { return state + parameters + gradients + activations + exchange + nccl; }
};
/// Never less than engine and backend allocate. leaves: M, the micro-batches of a step over all
/// groups; groups: the most groups there can be. The tree sum keeps a partial sum for each binary
/// digit of the number of turns of a group (sharding.hpp).
MemoryEstimate memory_estimate(const Config& config, const ModelShape& shape, Sharding sharding,
                               int shards, int groups, int64_t leaves);

/// What the states of a run are made of.
inline StateFormat state_format(const TrainConfig& train) {
  return {train.ema_decay > 0, train.moments_precision};
}

struct Plan {
  ModelShape shape;
  Topology topology;
  int64_t micro_batch_size = 1;  // B, samples
  int64_t accumulation = 1;      // A = M / world, rounded up: micro-batches of a trainer in a step
                                 // of the configured layout; more while groups are missing
  int64_t leaves = 1;            // M, micro-batches per step, after the batch's warm-up
  int64_t wave = 1;              // the most micro-batches of a trainer that pass a unit together
  std::string wave_reason;       // `config show` prints it
  std::vector<int64_t> waves;    // the same in groups of each of topology.group_sizes
  Offload offload = Offload::none;  // never automatic
  std::string offload_reason;       // `config show` prints it
  // Never automatic. Resident only in groups whose shards are whole experts (has_whole_experts()).
  ExpertPlacement experts = ExpertPlacement::gathered;
  std::string experts_reason;     // `config show` prints it
  int64_t global_batch_size = 1;  // M * B, samples per step, after the batch's warm-up
  BatchSchedule batch;            // samples of every step, at most M * B
  int64_t max_iters = 1;          // micro-batches per trainer in the run
  int64_t max_steps = 1;          // S
  int64_t tokens_per_step = 1;    // of M * B samples
  int64_t max_tokens = 1;         // of max_steps steps
  LearningRate learning_rate;
  SkippedSamples skipped;  // data.skip_samples
  Mixture mixture;         // data.blend and data.stage; empty: one source
  uint64_t parameters = 0;
  StateFormat state;      // with train.ema_decay and train.moments_precision
  MemoryEstimate memory;  // per trainer
  /// The wave of a group of so many trainers: it depends on their memory for a shard.
  int64_t wave_of(int shards) const;
  /// On how many trainers of such a group the experts are; 1 if they are gathered.
  int expert_shards(int shards) const;
  /// Of the whole state, per parameter.
  uint64_t state_bytes() const { return state.bytes(); }
  /// Tokens that steps 1 to `step` train together.
  uint64_t tokens(uint64_t step) const {
    return batch.samples(step) * static_cast<uint64_t>(shape.block_size);
  }
  /// Tokens that one step trains.
  uint64_t tokens_of(uint64_t step) const {
    return batch.size(step) * static_cast<uint64_t>(shape.block_size);
  }
  /// Micro-batches of a trainer, in the configured layout, for so many samples; rounded down.
  uint64_t iters(uint64_t samples) const {
    return samples / static_cast<uint64_t>(samples_per_iter());
  }
  /// Samples that a micro-batch of every trainer of the configured layout has together.
  int64_t samples_per_iter() const { return micro_batch_size * topology.world(); }
};

/// Sets wave, wave_reason and waves; the plan has its topology and batch. bad_config: not a power of
/// two.
Status plan_wave(const Config& config, Plan& plan);
/// Sets experts and experts_reason; the plan has its topology and batch. bad_config: no shard can be whole
/// experts.
Status plan_experts(const Config& config, Plan& plan);
/// The plan's memory with another wave, and with the plan's offload.
MemoryEstimate memory_with_wave(const Config& config, const Plan& plan, int64_t wave);
/// The same in groups of so many nodes.
MemoryEstimate memory_in_groups(const Config& config, const Plan& plan, int nodes, int64_t wave);
/// Bytes that a trainer sends to the others of its group in a step of M leaves with waves of `wave`,
/// for parameters and gradients, if each trainer sends to each other. The formula is in wave.cpp.
uint64_t bytes_in_group(const Config& config, const Plan& plan, int64_t wave);

/// Topology, batch and schedule of a run. bad_config: as plan_topology(); a global batch that is
/// not a multiple of micro_batch_size (the message names the nearest multiples), or has not one
/// micro-batch for each trainer; a run without an end; a warm-up longer than the run; a fault that
/// cannot happen.
Result<Plan> make_plan(const Config& config);
/// All these errors. Sets those members of the plan that they leave possible.
std::vector<Status> plan_problems(const Config& config, Plan& plan);
/// make_plan(). Errors name the file and line that set the key at fault.
Result<Plan> make_plan(const LoadedConfig& loaded);

/// FLOP per token, forward and backward. palm: 6 N + 12 L C T (arXiv 2204.02311, appendix B).
/// causal: 6 N_matmul + 6 L C T, matrix products without the embedding, causal attention counted
/// half. C is the width of the queries in both; with a sliding window only the tokens in it count.
struct FlopsPerToken {
  double palm = 0, causal = 0;
};
FlopsPerToken flops_per_token(const ModelShape& shape);
/// Model FLOP utilization by the PaLM convention, 0 to 1. peak_flops: of one trainer's device; 0
/// (unknown) gives 0.
double mfu(const ModelShape& shape, double tokens_per_second, int world, double peak_flops);

}  // namespace simplescale
