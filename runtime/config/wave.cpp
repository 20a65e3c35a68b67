// How many micro-batches pass a unit together, whether experts are gathered, and what that saves and takes.
// No bit depends on it.
#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/config/check.hpp"
#include "runtime/config/offload.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

MemoryEstimate memory_with_wave(const Config& config, const Plan& plan, int64_t wave) {
  return memory_in_groups(config, plan, plan.topology.group_nodes, wave);
}

MemoryEstimate memory_in_groups(const Config& config, const Plan& plan, int nodes, int64_t wave) {
  Config with = config;
  with.parallel.wave = wave;
  with.parallel.offload = plan.offload;
  with.parallel.experts = plan.experts;
  const Topology& t = plan.topology;
  return memory_estimate(with, plan.shape, t.sharding, t.shards_of(nodes), t.most_groups_of(nodes),
                         plan.leaves);
}

int64_t Plan::wave_of(int shards) const {
  for (size_t i = 0; i < waves.size(); ++i)
    if (topology.shards_of(topology.group_sizes[i]) == shards) return waves[i];
  return wave;
}

int Plan::expert_shards(int shards) const {
  return experts == ExpertPlacement::resident &&
                 has_whole_experts(shape, static_cast<size_t>(shards))
             ? shards
             : 1;
}

// With L blocks of U elements, padded, T turns, and E and H for embeddings and head:
//
//   gathered   full_shard: T (2 (L - 2) U + E + H) + 2 U, since two blocks stay in their buffers when
//              a pass turns around; E and H once a step if they are tied. shard_grad_op: once a step
//   reduced    T (L U + E + H), and E once more a turn if they are tied; a wave's sums in fp32
//
// Experts are units of their own, which have two buffers, too. Resident experts are not gathered. Instead in
// each of their layers a token's C elements are sent to the trainers that have its experts, again with the
// gradients of what they return, and back for each of its experts each time; with each row's weight and place.
//
// A trainer sends its shard of what is gathered, and the other trainers' shards of what is reduced,
// to each of the S - 1 others: (S - 1) / S of the elements. For many blocks that is (K / wave) (2 + 2
// + 4) bytes a parameter in bf16, and 6 K with wave = 1.
uint64_t bytes_in_group(const Config& config, const Plan& plan, int64_t wave) {
  const auto shards = static_cast<uint64_t>(plan.topology.shards);
  if (shards == 1) return 0;
  const std::vector<Unit> units = units_of(plan.shape);
  std::vector<uint64_t>
      blocks[2];  // elements of a shard of each block, and of each block's experts
  for (const Unit& unit : units)
    if (unit.layer >= 0)
      blocks[unit.kind == Unit::Kind::experts].push_back(shard_count(unit.count, shards));
  const uint64_t E = shard_count(units.front().count, shards),
                 H = shard_count(units.back().count, shards);
  const bool tied = plan.shape.tie_embeddings;
  const std::vector<int> turns =
      Shares::even(static_cast<uint64_t>(plan.leaves), static_cast<uint64_t>(plan.topology.groups),
                   shards, static_cast<uint64_t>(wave))
          .turns(0);
  const uint64_t T = turns.size();
  const uint64_t c = bytes_of(config.train.precision);
  uint64_t rows = 0;  // bytes
  if (plan.experts == ExpertPlacement::resident) {
    const Experts& x = plan.shape.experts;
    const auto E = static_cast<double>(x.count), S = static_cast<double>(shards);
    double none = 1;  // probability that a token has no expert on a trainer, if all are as likely
    for (int64_t i = 0; i < x.per_token; ++i) {
      const auto taken = static_cast<double>(i);
      none *= std::max(0.0, (E - E / S - taken) / (E - taken));
    }
    const auto C = static_cast<double>(plan.shape.dim * static_cast<int64_t>(c));
    const double of_token =
        3 * C * S * (1 - none) + static_cast<double>(x.per_token) * (2 * C + 16);
    const auto of_micro_batch = static_cast<uint64_t>(
        static_cast<double>(plan.micro_batch_size * plan.shape.block_size) * of_token);
    rows = static_cast<uint64_t>(plan.accumulation) * blocks[1].size() * of_micro_batch / shards;
    blocks[1].clear();
  }
  uint64_t all = 0, gathered_again = 0;  // elements of blocks
  for (const std::vector<uint64_t>& parts : blocks) {
    const size_t kept = std::min<size_t>(parts.size(), 2);
    const uint64_t whole = std::accumulate(parts.begin(), parts.end(), uint64_t{0}),
                   first = std::accumulate(parts.begin(), parts.begin() + kept, uint64_t{0}),
                   last = std::accumulate(parts.end() - kept, parts.end(), uint64_t{0});
    all += whole;
    gathered_again += T * (2 * whole - first - last) + first;
  }
  const uint64_t gathered = plan.topology.sharding == Sharding::full_shard
                                ? gathered_again + (tied ? 1 : T) * (E + H)
                                : all + E + H;
  uint64_t bytes = c * gathered + rows;
  for (const int size : turns) bytes += (size > 1 ? 4 : c) * (all + (tied ? 2 : 1) * E + H);
  return bytes * (shards - 1);
}

int64_t widest_wave(int64_t accumulation) {
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, accumulation))));
}

namespace {

struct Wave {
  int64_t size = 1;
  std::string reason;
};

/// Inside a node a wave saves little, and its activations leave the caches. But gradients leave a GPU
/// unit by unit only if all micro-batches of a step are one wave.
Wave wave_in_groups(const Config& config, const Plan& plan, int nodes) {
  const Topology& t = plan.topology;
  if (config.parallel.wave > 0) return {config.parallel.wave, "parallel.wave is set"};
  const int64_t trainers = std::max(1, t.nodes / nodes) * t.shards_of(nodes);
  const int64_t widest = widest_wave((plan.leaves + trainers - 1) / trainers);
  const auto bytes = [&](int64_t wave) {
    return memory_in_groups(config, plan, nodes, wave).total();
  };
  Wave wave{1, "no group spans nodes"};
  if (nodes > 1 && t.shards_of(nodes) > 1) {
    wave.size = widest;
    while (wave.size > 1 && bytes(wave.size) > memory_of_trainer(config)) wave.size /= 2;
    wave.reason =
        std::string("groups span nodes; ") +
        (wave.size == widest ? "all that accumulate" : "the most that fits a trainer's memory");
  }
  if (offloads_state(plan.offload) && wave.size < widest && bytes(widest) < bytes(wave.size))
    wave = {widest, "a unit's gradient leaves the GPU when all micro-batches have passed it"};
  return wave;
}

}  // namespace

Status plan_experts(const Config& config, Plan& plan) {
  const ExpertPlacement wanted = config.parallel.experts;
  const auto shards = static_cast<size_t>(plan.topology.shards);
  const Experts& x = plan.shape.experts;
  const auto place = [&](ExpertPlacement experts, const char* reason) {
    plan.experts = experts;
    plan.experts_reason = reason;
    return Status();
  };
  if (x.count == 0 && wanted == ExpertPlacement::resident)
    return bad_config("parallel.experts = \"resident\", but the model has no experts");
  if (wanted == ExpertPlacement::gathered || x.count == 0)
    return place(ExpertPlacement::gathered, "parallel.experts is set");
  if (shards == 1)
    return place(ExpertPlacement::gathered, "a group is one trainer, which has all experts");
  const bool fits = has_whole_experts(plan.shape, shards);
  if (wanted == ExpertPlacement::resident && !fits)
    return bad_config(
        "parallel.experts = \"resident\": the " + std::to_string(shards) +
        " trainers of a group cannot each have as many whole experts of " +
        std::to_string(x.count) +
        (x.count % static_cast<int64_t>(shards) == 0
             ? ", since a shard is a multiple of " + std::to_string(kShardAlign) + " parameters"
             : "") +
        "; use another parallel.group_nodes or model.experts, or parallel.experts = \"gathered\"");
  if (wanted == ExpertPlacement::resident)
    return place(ExpertPlacement::resident, "parallel.experts is set");
  if (!fits)
    return place(ExpertPlacement::gathered, "the shards of a group cannot be whole experts");
  if (plan.topology.group_nodes <= 1)
    return place(ExpertPlacement::gathered, "no group spans nodes");
  const auto bytes = [&](ExpertPlacement experts) {
    Plan with = plan;
    with.experts = experts;
    return bytes_in_group(config, with, widest_wave(plan.accumulation));
  };
  const bool fewer = bytes(ExpertPlacement::resident) < bytes(ExpertPlacement::gathered);
  return place(fewer ? ExpertPlacement::resident : ExpertPlacement::gathered,
               "sends fewer bytes between nodes");
}

Status plan_wave(const Config& config, Plan& plan) {
  const int64_t wanted = config.parallel.wave;
  if (wanted > 0 && !std::has_single_bit(static_cast<uint64_t>(wanted)))
    return bad_config("parallel.wave = " + std::to_string(wanted) + " is not a power of two");
  const Wave configured = wave_in_groups(config, plan, plan.topology.group_nodes);
  plan.wave = configured.size;
  plan.wave_reason = configured.reason;
  for (const int size : plan.topology.group_sizes)
    plan.waves.push_back(wave_in_groups(config, plan, size).size);
  return {};
}

}  // namespace simplescale
