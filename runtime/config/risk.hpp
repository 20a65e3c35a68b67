// What a failure costs with a layout, told before it happens. A pure function of the configuration,
// any thread.
#pragma once

#include <optional>
#include <string>

#include "runtime/config/topology.hpp"
#include "runtime/training/group_shape.hpp"

namespace simplescale {

/// The cost of each loss: "no step: …", "up to 50 steps: one group, no peers".
struct Risk {
  std::string trainer, node, file_system;
  std::string avoid;  // settings with which a lost node costs less; "" if it costs no step
};
Risk risk_of(const Config& config, const Plan& plan);

/// The same in one line, for the start of a run.
std::string risk_line(const Risk& risk);

/// The groups of another size that the nodes form once one is lost. Nothing: they keep their size, or a
/// spare takes its place.
std::optional<GroupShape> shape_after_loss(const Config& config, const Topology& topology);

}  // namespace simplescale
