#include "runtime/config/topology.hpp"

#include <algorithm>
#include <cstdio>

#include "runtime/base/words.hpp"
#include "runtime/config/offload.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {
namespace {

constexpr int paper_group_nodes = 4;      // default group size
constexpr int paper_one_group_nodes = 8;  // up to this many nodes form one group
constexpr double assumed_gib = 4;         // that a trainer has at least, if it is not known
constexpr int64_t automatic_peer_steps = 10;

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1u << 30));
  return text;
}

std::vector<int> divisors(int nodes) {
  std::vector<int> found;
  for (int n = 1; n <= nodes; ++n)
    if (nodes % n == 0) found.push_back(n);
  return found;
}

std::string listed(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i) out += i + 1 < numbers.size() ? ", " : " or ";
    out += std::to_string(numbers[i]);
  }
  return out;
}

/// The most nodes that train once others have joined.
int most_that_train(const Config& config) {
  return most_nodes(config) - static_cast<int>(config.cluster.spares);
}

/// Bytes that a trainer needs if its group has `shards` trainers.
Result<uint64_t> needed_bytes(const Config& config, Sharding sharding, int shards) {
  SS_ASSIGN(const ModelShape shape, model_shape(config));
  const int64_t world = config.cluster.nodes * config.cluster.trainers_per_node;
  const int64_t leaves =
      std::max(world, config.train.global_batch_size / config.train.micro_batch_size);
  const int64_t groups = most_that_train(config) * config.cluster.trainers_per_node / shards;
  const auto bytes = [&](const Config& with) {
    return memory_estimate(with, shape, sharding, shards, static_cast<int>(groups), leaves).total();
  };
  if (config.parallel.wave > 0 || !offloads_state(config.parallel.offload)) return bytes(config);
  Config with = config;  // as plan_wave()
  with.parallel.wave = widest_wave((leaves + world - 1) / world);
  return std::min(bytes(config), bytes(with));
}

struct GroupSize {
  int nodes = 1;
  std::string reason;
};

/// The smallest group whose trainers have enough memory; 0 nodes: none has, or the shape is not
/// known.
GroupSize fitting_group(const Config& config) {
  const bool known = config.cluster.memory_per_trainer_gib > 0;
  for (const int size : divisors(static_cast<int>(config.cluster.nodes))) {
    const int shards = size * static_cast<int>(config.cluster.trainers_per_node);
    const auto needed = needed_bytes(config, Sharding::full_shard, shards);
    if (!needed.ok()) break;
    if (*needed > memory_of_trainer(config)) continue;
    return GroupSize{size, std::string("the smallest group that ") +
                               (known ? "fits memory" : "needs at most 4 GiB per trainer") +
                               ", with " + gib(static_cast<double>(*needed)) + " per trainer"};
  }
  return GroupSize{0, ""};
}

/// As many replicas as memory allows, since a lost node then costs no step. If the memory is not
/// known and the model is large: the paper's Dynamic HYBRID_SHARD.
GroupSize automatic_group(const Config& config) {
  const int nodes = static_cast<int>(config.cluster.nodes);
  GroupSize fits = fitting_group(config);
  if (fits.nodes > 0) return fits;
  if (config.cluster.memory_per_trainer_gib > 0)
    return GroupSize{nodes, "all nodes"};  // check_memory() reports that it does not fit
  if (nodes <= paper_one_group_nodes)
    return GroupSize{nodes, "eight nodes or fewer form one group if the model is large"};
  for (const int size : divisors(nodes))
    if (size >= paper_group_nodes)
      return GroupSize{size, "four nodes, or the next number that divides cluster.nodes"};
  return GroupSize{nodes, "all nodes"};
}

Result<GroupSize> group_size(const Config& config) {
  const int nodes = static_cast<int>(config.cluster.nodes);
  const int wanted = static_cast<int>(config.parallel.group_nodes);
  const Strategy strategy = config.parallel.strategy;
  if (strategy == Strategy::no_shard) return GroupSize{1, "every trainer holds the whole model"};
  if (wanted > nodes)
    return bad_config("parallel.group_nodes = " + std::to_string(wanted) +
                      " is more than cluster.nodes = " + std::to_string(nodes));
  if (wanted > 0) return GroupSize{wanted, "parallel.group_nodes is set"};
  if (strategy == Strategy::automatic) return automatic_group(config);
  if (strategy == Strategy::hybrid_shard)
    return GroupSize{std::min(paper_group_nodes, nodes), "four nodes by default"};
  return GroupSize{nodes, "all nodes form one group"};
}

/// True if a trainer is known to have so much memory.
bool has_memory(const Config& config, uint64_t bytes) {
  return static_cast<double>(bytes) <= config.cluster.memory_per_trainer_gib * (1u << 30);
}

/// If GPUs have memory for all parameters beside their shards, the backward pass need not gather
/// them again. Unknown memory: false.
bool fits_whole_parameters(const Config& config, int shards) {
  if (config.cluster.device != DeviceKind::cuda || shards == 1) return false;
  const auto needed = needed_bytes(config, Sharding::shard_grad_op, shards);
  return needed.ok() && has_memory(config, *needed);
}

std::vector<int> group_sizes(const Config& config, const Topology& t) {
  const bool whole = t.shards != t.group_nodes * t.trainers_per_node;
  if (whole || t.group_nodes == 1 || config.cluster.prefer == Prefer::group_nodes)
    return {t.group_nodes};
  // Where the memory is not known, it has room for what the configured groups need.
  const auto configured = needed_bytes(config, t.sharding, t.shards);
  const uint64_t room =
      std::max(memory_of_trainer(config),
               config.cluster.memory_per_trainer_gib > 0 || !configured.ok() ? 0 : *configured);
  std::vector<int> sizes;
  const int most = std::min(most_that_train(config), kRanksMax / t.trainers_per_node);
  for (int size = 1; size <= most; ++size) {
    const auto needed = needed_bytes(config, t.sharding, t.shards_of(size));
    if (size == t.group_nodes ||
        (t.most_groups_of(size) < kRanksMax && needed.ok() && *needed <= room))
      sizes.push_back(size);
  }
  return sizes;
}

Status check_ranks(const Topology& t) {
  const std::string most = std::to_string(kRanksMax) + " at most";
  if (t.shards > kRanksMax)
    return bad_config("parallel: a group would have " + std::to_string(t.shards) + " trainers, " +
                      most + ": set parallel.group_nodes, or strategy = \"hybrid_shard\"");
  if (t.most_ranks() > kRanksMax)
    return bad_config("parallel: each shard would be on " + std::to_string(t.most_groups) +
                      " trainers, and one more may send it: " + most +
                      "; use larger groups (parallel.group_nodes)");
  return {};
}

Status check_memory(const Config& config, const Topology& topology) {
  if (config.cluster.memory_per_trainer_gib == 0) return {};
  SS_ASSIGN(const uint64_t needed,
            needed_bytes(with_least_device_memory(config), topology.sharding, topology.shards));
  if (has_memory(config, needed)) return {};
  const double memory = config.cluster.memory_per_trainer_gib * (1u << 30);
  return bad_config("cluster.memory_per_trainer_gib: the model needs about " +
                    gib(static_cast<double>(needed)) + " per trainer with " +
                    std::to_string(topology.shards) + " shards, but a trainer has " + gib(memory) +
                    ": use more trainers per group, a smaller micro_batch_size, or "
                    "activation_checkpointing");
}

}  // namespace

int Topology::most_ranks() const {
  int most = 1;
  for (const int size : group_sizes)
    most = std::max({most, shards_of(size), most_groups_of(size) + 1});
  return most;
}

bool balances(const Config& config) {
  return config.cluster.balance == Balance::automatic && config.cluster.device != DeviceKind::cuda;
}

uint64_t memory_of_trainer(const Config& config) {
  const double known = config.cluster.memory_per_trainer_gib;
  return static_cast<uint64_t>(std::min(1e18, (known > 0 ? known : assumed_gib) * (1u << 30)));
}

Result<Topology> plan_topology(const Config& config) {
  Topology t;
  if (const int64_t begin = config.cluster.nodes + config.cluster.spares;
      config.cluster.max_nodes > 0 && config.cluster.max_nodes < begin)
    return bad_config("cluster.max_nodes = " + std::to_string(config.cluster.max_nodes) +
                      " is less than cluster.nodes + cluster.spares = " + std::to_string(begin) +
                      ", the nodes with which the run begins");
  t.nodes = static_cast<int>(config.cluster.nodes);
  t.trainers_per_node = static_cast<int>(config.cluster.trainers_per_node);
  SS_ASSIGN(const GroupSize size, group_size(config));
  if (t.nodes % size.nodes != 0)
    return bad_config("parallel.group_nodes = " + std::to_string(size.nodes) +
                      " does not divide cluster.nodes = " + std::to_string(t.nodes) + ": use " +
                      listed(divisors(t.nodes)) + " nodes per group");
  t.group_nodes = size.nodes;
  t.reason = size.reason;
  const int world = t.nodes * t.trainers_per_node;
  const bool whole = config.parallel.strategy == Strategy::no_shard;
  t.shards = whole ? 1 : t.group_nodes * t.trainers_per_node;
  t.groups = world / t.shards;
  t.most_groups =
      most_that_train(config) / t.group_nodes * (t.group_nodes * t.trainers_per_node / t.shards);
  t.strategy = config.parallel.strategy;
  if (t.strategy == Strategy::automatic && fits_whole_parameters(config, t.shards)) {
    t.strategy = Strategy::shard_grad_op;
    t.reason += "; all parameters fit beside it, so they are gathered once a step";
  }
  if (t.strategy == Strategy::automatic)
    t.strategy = t.groups > 1 ? Strategy::hybrid_shard : Strategy::full_shard;
  t.sharding = whole                                   ? Sharding::no_shard
               : t.strategy == Strategy::shard_grad_op ? Sharding::shard_grad_op
                                                       : Sharding::full_shard;
  t.group_sizes = group_sizes(config, t);
  if (t.groups < config.cluster.min_groups)
    return bad_config("cluster.min_groups = " + std::to_string(config.cluster.min_groups) +
                      " is more than the layout's " + counted(t.groups, "group"));
  SS_RETURN_IF_ERROR(check_ranks(t));
  SS_RETURN_IF_ERROR(check_memory(config, t));
  for (int rank = 0; rank < world; ++rank)
    t.trainers.push_back({.node = rank / t.trainers_per_node,
                          .slot = rank % t.trainers_per_node,
                          .rank = rank,
                          .group = rank / t.shards,
                          .shard = rank % t.shards});
  return t;
}

int64_t peer_every_steps(const Config& config, const Topology& topology) {
  if (config.checkpoint.peer_every_steps >= 0) return config.checkpoint.peer_every_steps;
  return topology.domains() == 1 && most_nodes(config) > 1 ? automatic_peer_steps : 0;
}

int most_nodes(const Config& config) {
  const ClusterConfig& c = config.cluster;
  return static_cast<int>(std::max(c.nodes + c.spares, c.max_nodes));
}

bool may_grow(const Config& config) {
  return most_nodes(config) > config.cluster.nodes + config.cluster.spares;
}

int smallest_group(const Config& config) {
  return fitting_group(config).nodes;
}

}  // namespace simplescale
