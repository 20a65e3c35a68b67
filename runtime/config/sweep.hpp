// What runs a [sweep] comes to. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

struct SweepRun {
  std::string name;  // "003-learning_rate-0.001-seed-2": a run's, and its folder's
  std::vector<std::pair<std::string, std::string>> choices;  // key, value in TOML syntax
  std::vector<std::string> overrides;                        // of the choices, for load_config()
};

/// One run for each combination and seed, seeds varying fastest, then the last key. bad_config:
/// nothing to vary, lists of different lengths to zip, more than 10,000 runs.
Result<std::vector<SweepRun>> expand_sweep(const Config& config);

}  // namespace simplescale
