// Which fault can be caused where. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// What a fault's kind is aimed at. A node stands for its first trainer, too.
enum class FaultTarget : unsigned char { trainer, node, supervisor };
FaultTarget fault_target(const std::string& kind);

/// bad_config: there is no such kind, no such target, or the target is of the wrong sort; names the
/// nearest that is right. nodes, trainers: all names there are.
Status check_fault(const std::string& kind, const std::string& target,
                   const std::vector<std::string>& nodes, const std::vector<std::string>& trainers);

/// The faults of [inject] against the run they are to happen in: targets that are there, steps that
/// it will make. bad_config, beginning with the key.
Status check_faults(const Config& config, const Plan& plan);

}  // namespace simplescale
