// When a run is validated, and with which samples. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/feed/run_data.hpp"

namespace simplescale {

/// True if the state of `step` is to be validated: at the start and at the end of the run, and
/// every train.validation_every_steps steps.
bool validation_due(const Config& config, const Plan& plan, uint64_t step);
/// True if the state of `step` is to be scored by train.tasks: likewise, and every
/// train.tasks_every_steps steps.
bool tasks_due(const Config& config, const Plan& plan, uint64_t step);

/// Micro-batches of a validation; 0: there is nothing to validate.
uint64_t validation_batches(const Config& config, const Plan& plan, const TokenSource& source);

/// A warning for each source of which validation tokens are wanted but too few for a micro-batch, so
/// that it has no validation loss.
std::vector<std::string> validation_warnings(const Config& config, const Plan& plan,
                                             const RunData& data);

/// Position of sample `index` of `samples` in a source of `available` samples: the samples are
/// spread evenly over the source.
uint64_t validation_position(uint64_t index, uint64_t samples, uint64_t available);

}  // namespace simplescale
