#include "runtime/config/risk.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/words.hpp"
#include "runtime/training/group_shape.hpp"

namespace simplescale {
namespace {

/// Why one lost node takes a part of every copy of the model with it.
std::string no_replica(const Topology& t) {
  return t.groups == 1 ? "one group" : "all " + counted(t.groups, "group") + " on one node";
}

/// "3 groups of 1 node"; "" if the nodes that are left keep their size.
std::string text_after_loss(const Config& config, const Topology& t) {
  const auto shape = shape_after_loss(config, t);
  if (!shape) return "";
  return counted(static_cast<int64_t>(shape->groups), "group") + " of " +
         counted(shape->size, "node");
}

/// If no other node has a replica of what the lost node held.
std::string node_without_replica(const Config& config, const Plan& plan) {
  const Topology& t = plan.topology;
  const int64_t peers = peer_every_steps(config, t), disk = config.checkpoint.disk_every_steps;
  // A node that may live may come back with the newest step: size_waits() of the decisions.
  const std::string shape = disk == 0 && peers == 0 ? "" : text_after_loss(config, t);
  const std::string waits = config.cluster.spares > 0 ? ""
                            : shape.empty()
                                ? "; training waits until the node is started again"
                                : "; training goes on with " + shape + ", after " +
                                      std::to_string(config.cluster.join_timeout_ms / 1000) +
                                      " s if the node may come back";
  // A step is copied after the next one is committed, while a further one is made.
  if (peers > 0 && (disk == 0 || peers + 2 < disk))
    return "about " + counted(std::min(peers + 2, plan.max_steps), "step") + ": " + no_replica(t) +
           ", copies on other nodes every " + counted(peers, "step") + waits;
  const std::string why = no_replica(t) + (peers > 0 ? "" : ", no peers");
  if (disk == 0) return "all steps: " + why + ", no checkpoint before the end" + waits;
  return "up to " + counted(std::min(disk, plan.max_steps), "step") + ": " + why + waits;
}

std::string ways_to_avoid(const Config& config, const Plan& plan) {
  const Topology& t = plan.topology;
  std::vector<std::string> ways;
  const int group = smallest_group(config);
  if (group > 0 && group < t.nodes)
    ways.push_back("parallel.group_nodes = " + std::to_string(group));
  if (t.nodes + config.cluster.spares == 1)
    ways.emplace_back("cluster.spares = 1");
  else if (peer_every_steps(config, t) != 1)
    ways.emplace_back("checkpoint.peer_every_steps = 1");
  if (ways.empty()) ways.emplace_back("a smaller checkpoint.disk_every_steps");
  return joined(ways, " or ");
}

/// If every shard has a replica on another node.
std::string node_with_replicas(const Config& config, const Topology& t) {
  if (config.cluster.spares > 0) return "no step: a spare takes its place";
  if (const std::string shape = text_after_loss(config, t); !shape.empty())
    return "no step: training goes on with " + shape + " until it is back";
  const int left = t.groups / t.domains() * (t.domains() - 1);
  if (left < config.cluster.min_groups)
    return "no step, but training waits until it is back: cluster.min_groups = " +
           std::to_string(config.cluster.min_groups);
  return "no step: the other " + (left == 1 ? "group trains" : counted(left, "group") + " train") +
         " its samples until it is back";
}

/// The steps that are lost with a trainer's own memory.
std::string trainer(const Config& config, const Plan& plan) {
  const std::string successor = config.supervision.warm_processes > 0
                                    ? "a warm process takes its place"
                                    : "a new process is started";
  const CheckpointConfig& c = config.checkpoint;
  // ENGINE-6: a GPU's state is copied while the next step is computed.
  const bool copied = config.cluster.device == DeviceKind::cuda || c.memory_every_steps != 1;
  if (!copied || config.cluster.device == DeviceKind::cpu)
    return "no step: its state outlives it, and " + successor;
  if (plan.topology.groups > 1)
    return "no step: another group has its state, and " + successor +
           "; with GPUs the last trainer of a shard costs the steps since its state was copied";
  int64_t steps = plan.max_steps;
  for (const int64_t every :
       {c.memory_every_steps, peer_every_steps(config, plan.topology), c.disk_every_steps})
    if (every > 0) steps = std::min(steps, every);
  return "up to " + counted(steps, "step") +
         " with GPUs: checkpoint.memory_every_steps = " + std::to_string(c.memory_every_steps) +
         ", and " + successor;
}

}  // namespace

std::optional<GroupShape> shape_after_loss(const Config& config, const Topology& t) {
  if (config.cluster.spares > 0) return std::nullopt;
  const ShapeRules rules{t.group_sizes, t.group_nodes,
                         static_cast<size_t>(std::max<int64_t>(1, config.cluster.min_groups)),
                         config.cluster.prefer == Prefer::rate};
  const auto shape = choose_shape(rules, static_cast<size_t>(t.nodes - 1));
  return shape && !shape->configured ? shape : std::nullopt;
}

Risk risk_of(const Config& config, const Plan& plan) {
  Risk risk;
  risk.trainer = trainer(config, plan);
  const bool replicas = plan.topology.domains() > 1;
  risk.node =
      replicas ? node_with_replicas(config, plan.topology) : node_without_replica(config, plan);
  if (!replicas) risk.avoid = ways_to_avoid(config, plan);
  risk.file_system = config.checkpoint.folder.empty()
                         ? "the whole run: its checkpoints are in its folder"
                         : "the whole run, unless " + config.checkpoint.folder +
                               " with its checkpoints is on another one";
  return risk;
}

std::string risk_line(const Risk& risk) {
  const auto amount = [](const std::string& text) { return text.substr(0, text.find(": ")); };
  return "if lost: a trainer costs " + amount(risk.trainer) + "; a node costs " + risk.node +
         (risk.avoid.empty() ? "" : " (to avoid it: " + risk.avoid + ")") +
         "; the run's file system costs " + amount(risk.file_system);
}

}  // namespace simplescale
