// What a failure costs with a layout, told before it happens. A pure function of the configuration,
// any thread.
#pragma once

#include <string>

#include "runtime/config/topology.hpp"

namespace simplescale {

/// The cost of each loss: "no step: …", "up to 50 steps: one group, no peers".
struct Risk {
  std::string trainer, node, file_system;
  std::string avoid;  // settings with which a lost node costs less; "" if it costs no step
};
Risk risk_of(const Config& config, const Plan& plan);

/// The same in one line, for the start of a run.
std::string risk_line(const Risk& risk);

}  // namespace simplescale
