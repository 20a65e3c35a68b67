// The texts of `config show` and `config validate`. The command line prints them.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// A table of key, value and where the value came from (with what 0, -1 or "" come to), then the
/// plan: groups, shards, batch, steps, memory a trainer; or, where no plan is possible, why.
std::string show_config(const LoadedConfig& loaded);

/// One line about a config that can be trained; else the error that `train` would end with.
Result<std::string> validate_config(const LoadedConfig& loaded);

}  // namespace simplescale
