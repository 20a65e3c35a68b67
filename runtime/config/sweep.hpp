// The runs of a [sweep] section. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

struct SweepRun {
  std::string name;  // "003-learning_rate-0.001-seed-2", of the run and of its folder
  std::vector<std::pair<std::string, std::string>> choices;  // key, value in TOML syntax
  std::vector<std::string> overrides;                        // the choices, for load_config()
};

/// The configuration has a [sweep] section: it is several runs.
inline bool has_sweep(const Config& config) {
  return !config.sweep.keys.empty() || !config.sweep.seeds.empty();
}

/// One run for each combination and seed; the seed varies fastest, then the last key. bad_config:
/// nothing to vary, zip with lists of different lengths, more than 10,000 runs.
Result<std::vector<SweepRun>> expand_sweep(const Config& config);

}  // namespace simplescale
