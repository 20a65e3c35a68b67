#include "runtime/config/faults.hpp"

#include <algorithm>
#include <map>
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

std::string fault_help(const std::string& kind) {
  static const std::map<std::string, std::string> help = {
      {"kill_trainer", "ends the process at once (SIGKILL)"},
      {"stop_trainer", "stops the process without ending it (SIGSTOP)"},
      {"hang_trainer", "the process makes no progress and stays alive"},
      {"segfault_trainer", "the process crashes with a segmentation fault"},
      {"oom_trainer", "the process runs out of memory"},
      {"kill_agent", "the whole node dies, with its memory"},
      {"stop_agent", "the whole node stops answering"},
      {"kill_supervisor", "ends the supervisor; its standby takes over"},
      {"partition_node", "cuts the node off from the network for some seconds"},
      {"slow_node", "each micro-batch of the node's trainers takes longer"},
      {"slow_link", "delays the node's network traffic for some seconds"},
      {"lose_messages", "loses some of the node's messages for some seconds"},
      {"corrupt_snapshot", "flips a bit of a state in memory; of a node: of its peer copies"},
      {"corrupt_checkpoint", "damages a checkpoint on the disk"},
      {"disk_full", "writing checkpoints fails as on a full disk"},
      {"slow_disk", "writing checkpoints is slow"},
      {"bitflip_gradient", "one bit of the trainer's gradient is wrong"},
      {"nan_loss", "the trainer's loss is NaN"},
  };
  const auto found = help.find(kind);
  return found == help.end() ? "" : found->second;
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
  if (target.empty()) return bad(kind + " needs a " + what + ", one of " + joined(known));
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
