// Checks of values against each other, and the origin of the value that a message is about. Pure
// functions.
#pragma once

#include "runtime/config/config.hpp"

namespace simplescale {

/// What is wrong with combinations of values that need no plan. Messages begin with the key at
/// fault, "section.key ...".
std::vector<Status> check_combinations(const Config& config);

/// True for a text that run.name may have.
bool is_run_name(const std::string& text);

/// The same status, with the origin of the key at the beginning of its message in front:
/// "configs/a.toml:7: model.heads = 5 ...". The file if the key has its default.
Status located(const Status& status, const LoadedConfig& loaded);

}  // namespace simplescale
