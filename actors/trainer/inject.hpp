// Faults on purpose that happen inside a trainer's process. Called by the trainer actor.
#pragma once

#include "actors/trainer/compute_thread.hpp"

namespace simplescale {

/// segfault_trainer, oom_trainer: ends this process, in its way. hang_trainer, bitflip_gradient,
/// nan_loss: as EngineFault, in the next step. slow_node: sleeps `value` (1 if 0) of each step's
/// time for `ms`. Others are ignored, with a line in the log.
void inject_into_trainer(ComputeThread& compute, const InjectFault& fault);

}  // namespace simplescale
