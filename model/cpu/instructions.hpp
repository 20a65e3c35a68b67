// With which vector instructions this process computes on the CPU: one choice for our kernels and for
// MKL, because the bits of both depend on it.
//
//   BACKEND-3  All trainers of a run on CPUs compute with the same instructions.
#pragma once

#include "runtime/base/instruction_set.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::cpu {

/// Any thread, before the process makes its first backend or decoder; without this call these take
/// the best of the host. bad_config: the host lacks the set, or the process uses another one.
Status use_instructions(InstructionSet set);

/// The set that this process uses. The first call settles it. Any thread.
InstructionSet used_instructions();

}  // namespace simplescale::cpu
