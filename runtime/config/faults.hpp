// Checks of injected faults and their targets. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// What a kind of fault hits. Where a trainer is expected, a node's name means its first trainer.
enum class FaultTarget : unsigned char { trainer, node, supervisor };
FaultTarget fault_target(const std::string& kind);

/// What a kind does, in a few words.
std::string fault_help(const std::string& kind);

/// bad_config: unknown kind, unknown target, or a target of the wrong sort; the message suggests
/// the nearest valid name. nodes, trainers: the names of all nodes and trainers.
Status check_fault(const std::string& kind, const std::string& target,
                   const std::vector<std::string>& nodes, const std::vector<std::string>& trainers);

/// Checks that the targets of inject.faults exist in the run, and that the run reaches their steps.
/// bad_config: the message begins with the key.
Status check_faults(const Config& config, const Plan& plan);

}  // namespace simplescale
