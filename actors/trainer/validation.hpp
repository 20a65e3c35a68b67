// The validation loss of the committed parameters, computed by all ranks of the world together.
#pragma once

#include <cstdint>

#include "model/engine/engine.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

/// True if the state of `step` is to be validated: at the start and at the end of the run, and every
/// train.validation_every_steps steps.
bool validation_due(const Config& config, const Plan& plan, uint64_t step);

/// Micro-batches of a validation; 0: there is nothing to validate.
uint64_t validation_batches(const Config& config, const Plan& plan, const TokenSource& source);

/// Position of sample `index` of `samples` in a source of `available` samples: the samples are
/// spread evenly over the source.
uint64_t validation_position(uint64_t index, uint64_t samples, uint64_t available);

/// Mean loss in nats over `batches` (at least 1) micro-batches, whose samples are spread evenly over
/// `source`. Micro-batch j is computed by rank j mod world, and the losses are added in the order of
/// j, so the result does not depend on the layout. Blocks; all ranks must call it together and get
/// the same result. After an error of `source`, the source is reopened for the next attempt. wait:
/// counts the collectives.
Result<double> validation_loss(Engine& engine, Collective& shard, Collective& replicate,
                               TokenSource& source, const Plan& plan, uint64_t batches,
                               WaitClock& wait);

}  // namespace simplescale
