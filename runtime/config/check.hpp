// What makes values impossible together, and where a message's value came from. Pure functions;
// internal to runtime/config.
#pragma once

#include "runtime/config/config.hpp"

namespace simplescale {

/// Values against each other, as far as no plan is needed. Messages begin with the key at fault,
/// "section.key ...".
Status check_combinations(const Config& config);

/// The same status with the origin of the key that its message begins with in front:
/// "configs/a.toml:7: model.heads = 5 ...".
Status located(const Status& status, const LoadedConfig& loaded);

}  // namespace simplescale
