// What an engine trains, and how. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/muon_plan.hpp"
#include "runtime/training/parameter_groups.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Steps up to this one have so many leaves.
struct WarmupLeaves {
  uint64_t until_step = 0;
  int leaves = 1;  // at most EngineOptions::leaves
};

/// S = shard.size() trainers per group, G = replicate.size() groups. A step has M leaves
/// (micro-batches), which are dealt to the groups and their trainers (sharding.hpp).
struct EngineOptions {
  ModelShape shape;
  DType precision = DType::f32;      // the backend's
  int micro_batch_size = 1;          // B, the backend's
  int leaves = 1;                    // M
  std::vector<WarmupLeaves> warmup;  // in order; later steps have `leaves` leaves
  int wave = 1;  // W: the most micro-batches of a trainer that pass a unit together; a power of two
  std::vector<uint32_t> weights;  // of each group, as of Shares::by_weight(); empty: all equal
  Sharding sharding = Sharding::full_shard;
  // Device memory: the state is in host memory only, and the host updates it. Not with Muon.
  bool state_in_host = false;
  bool inputs_in_host = false;  // the backend's: inputs of blocks
  // Experts stay on the trainers that have them, and tokens go there, if each shard is whole experts.
  bool resident_experts = false;
  /// Hash of the run's numerics signature (runtime/config/signature.hpp). A rank votes with it: all
  /// ranks must agree on all options that change bits, these and the backend's.
  Hash128 signature;
  float grad_clip = 1.0f;  // 0: no clipping
  float weight_decay = 0.1f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  Optimizer optimizer = Optimizer::adamw;
  float muon_momentum = 0.95f;
  DType moments = DType::f32;          // of the state
  double ema_decay = 0;                // 0: the state has no average of the parameters
  std::vector<ParameterGroup> groups;  // checked by check_groups()
  // With ModelShape::experts.bias: after each step the bias of an expert that had more tokens of the global
  // batch than the mean falls by so much, and that of one with fewer rises (DeepSeek-V3, arXiv
  // 2408.15664). The counts are whole numbers, so it is exact on every layout.
  float router_bias_rate = 0;
  float z_loss = 0;               // the backend's
  bool fp8 = false;               // the backend's
  uint64_t seed = 1;              // of the initial values and of the rounding of moments
  int state_timeout_ms = 60'000;  // how long a reader may pin the side to be written
  // Device memory: every so many steps the state is copied to host memory; 0: only on demand.
  uint64_t memory_every_steps = 1;
};

inline StateFormat state_format(const EngineOptions& options) {
  return {options.ema_decay > 0, options.moments};
}

/// Leaves of a step (from 1), over all groups.
uint64_t leaves_of(const EngineOptions& options, uint64_t step);
/// How so many leaves are dealt.
Shares shares_of(const EngineOptions& options, uint64_t leaves, uint64_t groups, uint64_t shards);

/// True if experts stay in groups of so many trainers; else they are gathered.
inline bool has_resident_experts(const EngineOptions& options, size_t shards) {
  return options.resident_experts && has_whole_experts(options.shape, shards);
}

/// bad_config: what is wrong with the options for `groups` groups of `shards` trainers.
Status check(const EngineOptions& options, int shards, int groups);
/// Hash of how a step's leaves are divided among ranks, and in which order they are computed.
Hash128 layout_hash(const EngineOptions& options, int shards, int groups);

}  // namespace simplescale
