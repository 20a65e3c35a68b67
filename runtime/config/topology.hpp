// Who trains what: groups, shards, ranks, and a run's arithmetic (accumulation, steps, learning
// rate, memory). Pure functions of the config, so every process computes the same plan and the
// supervisor can plan for a layout that does not exist yet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/training/names.hpp"
#include "runtime/training/sharding.hpp"

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
  int group_nodes = 1;  // nodes of a group; no_shard: 1 (several groups may share a node)
  int groups = 1;       // G
  int shards = 1;       // S, trainers of a group
  std::vector<TrainerPlace> trainers;  // in rank order
  std::string reason;                  // why this group size, for `config show`
  int world() const { return groups * shards; }
};

/// bad_config: nodes do not divide into whole groups, fewer nodes than a group, fewer groups than
/// min_groups, a model that does not fit memory_per_trainer_gib.
Result<Topology> plan_topology(const Config& config);

/// Bytes one trainer needs, by purpose. See memory_estimate() in memory.cpp for the formulas.
struct MemoryEstimate {
  uint64_t state = 0;        // fp32 parameters and two moments of the own shard, both sides on CPU
  uint64_t parameters = 0;   // gathered units in compute precision
  uint64_t gradients = 0;    // a unit's gradient buffers and the fp32 sums of the own shard
  uint64_t activations = 0;  // of one micro-batch, logits included
  uint64_t total() const { return state + parameters + gradients + activations; }
};
/// layers etc. from shape; rows: K of a step, over all of at most `groups` groups (the tree keeps a
/// partial sum for each binary digit). Never below what the engine takes.
MemoryEstimate memory_estimate(const Config& config, const ModelShape& shape, Sharding sharding,
                               int shards, int groups, int64_t rows);

/// Warm-up, then a cosine down to the minimum: s < W: lr (s+1)/W; then min + (lr - min)/2 (1 +
/// cos(pi (s-W)/(S-W))).
struct LearningRate {
  double peak = 0, minimum = 0;
  int64_t warmup_steps = 0, steps = 1;  // W, S
  /// step counts from 0. After S: the minimum.
  double at(int64_t step) const;
};

struct Plan {
  ModelShape shape;
  Topology topology;
  int64_t micro_batch_size = 1;   // B, samples
  int64_t accumulation = 1;       // A, micro-batches of one trainer in a step of the configured
                                  // layout; a generation with fewer groups has more
  int64_t leaves = 1;             // M = world * A, micro-batches of a step
  int64_t global_batch_size = 1;  // M * B, samples of a step
  int64_t max_iters = 1;          // micro-batches of one trainer in the run: max_steps * A
  int64_t max_steps = 1;          // S
  int64_t tokens_per_step = 1;
  int64_t max_tokens = 1;  // tokens of the run: max_steps * tokens_per_step
  LearningRate learning_rate;
  uint64_t parameters = 0;
  MemoryEstimate memory;  // of one trainer
  /// K = M / S, rows of a step (sharding.hpp): the same whatever the number of groups.
  int64_t rows() const { return leaves / topology.shards; }
};

/// Topology, batch and schedule of a run. bad_config: the above, a batch that is not whole (names
/// the nearest that are), a run without an end, warm-up longer than the run.
Result<Plan> make_plan(const Config& config);
/// The same; errors name the file and line that set the key at fault.
Result<Plan> make_plan(const LoadedConfig& loaded);

/// FLOP a token. palm: 6 N + 12 L C T (arXiv 2204.02311, appendix B). causal: matrix products only,
/// no embedding, causal attention counted half (6 N_matmul + 6 L C T). Forward and backward.
struct FlopsPerToken {
  double palm = 0, causal = 0;
};
FlopsPerToken flops_per_token(const ModelShape& shape);
/// Model FLOP utilisation by the PaLM convention, 0..1; 0 where peak_flops (of one trainer's
/// device) is unknown (0).
double mfu(const ModelShape& shape, double tokens_per_second, int world, double peak_flops);

}  // namespace simplescale
