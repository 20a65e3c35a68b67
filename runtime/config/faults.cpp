#include "runtime/config/faults.hpp"

#include <algorithm>
#include <set>

#include "runtime/base/words.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

FaultTarget fault_target(const std::string& kind) {
  static const std::set<std::string> of_nodes = {
      "kill_agent",    "stop_agent",         "partition_node", "slow_node", "slow_link",
      "lose_messages", "corrupt_checkpoint", "disk_full",      "slow_disk"};
  if (kind == "kill_supervisor") return FaultTarget::supervisor;
  return of_nodes.contains(kind) ? FaultTarget::node : FaultTarget::trainer;
}

Status check_fault(const std::string& kind, const std::string& target,
                   const std::vector<std::string>& nodes,
                   const std::vector<std::string>& trainers) {
  const auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  const auto in = [&](const std::vector<std::string>& names) {
    return std::ranges::find(names, target) != names.end();
  };
  if (std::ranges::find(fault_kinds(), kind) == fault_kinds().end())
    return bad("there is no fault '" + kind + "'" + did_you_mean(kind, fault_kinds()));
  const FaultTarget sort = fault_target(kind);
  if (sort == FaultTarget::supervisor)
    return target.empty() || target == "supervisor"
               ? Status()
               : bad(kind + " takes the target \"supervisor\", not '" + target + "'");
  if (in(nodes) || (sort == FaultTarget::trainer && in(trainers))) return {};
  if (in(trainers))
    return bad(kind + " needs a node, but '" + target + "' is a trainer: did you mean '" +
               node_of(target) + "'?");
  std::vector<std::string> known = nodes;
  if (sort == FaultTarget::trainer) known.insert(known.end(), trainers.begin(), trainers.end());
  const std::string what = sort == FaultTarget::trainer ? "node or trainer" : "node";
  return bad("there is no " + what + " '" + target + "'" + did_you_mean(target, known));
}

Status check_faults(const Config& config, const Plan& plan) {
  if (config.inject.faults.empty()) return {};
  std::vector<std::string> nodes, trainers;
  for (int64_t n = 0; n < config.cluster.nodes + config.cluster.spares; ++n) {
    nodes.push_back(node_name(n));
    for (int slot = 0; slot < plan.topology.trainers_per_node; ++slot)
      trainers.push_back(trainer_name(nodes.back(), slot));
  }
  for (const FaultSpec& fault : config.inject.faults) {
    const std::string where = "inject.faults: step " + std::to_string(fault.step) + ": ";
    if (Status status = check_fault(fault.kind, fault.target, nodes, trainers); !status.ok())
      return Status(Code::bad_config, where + status.message());
    if (fault.step > plan.max_steps)
      return Status(Code::bad_config, where + "the run ends after step " +
                                          std::to_string(plan.max_steps) + ", so this " +
                                          fault.kind + " would never happen");
  }
  return {};
}

}  // namespace simplescale
