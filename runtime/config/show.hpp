// The texts that `config show` and `config validate` print.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// A table of every key with its value and origin (and the result of rules such as 0, -1 or ""),
/// then the plan: groups, shards, batch, steps, memory per trainer. If no plan is possible: the
/// reason.
std::string show_config(const LoadedConfig& loaded);

/// One line if the config can be trained; otherwise the error that `train` would end with.
Result<std::string> validate_config(const LoadedConfig& loaded);

}  // namespace simplescale
