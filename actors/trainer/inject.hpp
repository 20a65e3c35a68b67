// Fault injection inside a trainer's process. Called by the trainer actor.
#pragma once

#include "actors/trainer/compute_thread.hpp"

namespace simplescale {

/// Injects `fault.kind`; logs and ignores a kind that is not in this list:
///   segfault_trainer  raises SIGSEGV in this process
///   oom_trainer       allocates memory until std::bad_alloc ends this process
///   hang_trainer, bitflip_gradient, nan_loss
///                     as EngineFault, in step `step` or the first one after it
///   partition_node, slow_link
///                     delays messages to other nodes by `value` ms, for `ms`
///   slow_node         for `ms` (10 s if 0), each micro-batch takes `value` ms longer (100 if 0)
void inject_into_trainer(ComputeThread& compute, const InjectFault& fault);

}  // namespace simplescale
