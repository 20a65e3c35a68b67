// The validation loss and the scores of tasks of the committed parameters, computed by all ranks of
// the world together.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "model/engine/engine.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/feed/task_batches.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

/// mean: in nats over the trained targets, whose number is `targets`; NaN if there are none.
/// batches: as many micro-batches as these targets fill. by_position: of each position_group().
struct MeanLoss {
  struct Sum {
    double loss = 0, targets = 0;
  };
  double mean = std::numeric_limits<double>::quiet_NaN(), batches = 0;
  uint64_t targets = 0;
  std::vector<Sum> by_position = {};
};

/// Mean loss over `batches` (at least 1) micro-batches, whose samples are spread evenly
/// over `source`. length: of the samples, which divides the block size: a longer sample of the source
/// is cut into so long ones. Micro-batch j is computed by rank j mod world, and the losses are added
/// in the order of j, so the result does not depend on the layout. Blocks; all ranks must call it
/// together and get the same result. After an error of `source`, the source is reopened for the next
/// attempt. wait: counts the collectives.
Result<MeanLoss> validation_loss(Engine& engine, const Axes& axes, TokenSource& source,
                                 const Plan& plan, uint64_t batches, int64_t length,
                                 WaitClock& wait);

/// The validation tokens of a source, and how many micro-batches of them are computed; 0: none.
struct ValidationSource {
  TokenSource tokens;
  uint64_t batches = 0;
};

/// loss: the mean over the trained targets of all sources. sources: of each source. NaN where no
/// target is trained. targets: how many targets of each source are trained. lengths: as `loss`, with
/// samples of each length. positions: as `loss`, of each position_group().
struct ValidationLosses {
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sources;
  std::vector<uint64_t> targets;
  std::vector<double> lengths, positions;
};

/// validation_loss() of each source. Requires one that has micro-batches. lengths: of samples, besides
/// the block size.
Result<ValidationLosses> validation_losses(Engine& engine, const Axes& axes,
                                           std::vector<ValidationSource>& sources, const Plan& plan,
                                           const std::vector<int64_t>& lengths, WaitClock& wait);

/// The scores of tasks. As validation_loss(): micro-batch j is computed by rank j mod world, the
/// result does not depend on the layout, and all ranks must call it together and get the same
/// result.
Result<TaskScores> task_scores(Engine& engine, const Axes& axes, const TaskBatches& tasks,
                               const Plan& plan, WaitClock& wait);

}  // namespace simplescale
