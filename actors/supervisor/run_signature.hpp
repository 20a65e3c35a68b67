// The numerics signature of a run as far as it has begun: its GPUs choose algorithms in its first step,
// and until its hosts have reported, its instructions are the best of this one.
// Any thread; blocks on the file system.
#pragma once

#include "runtime/config/signature.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

Signature signature_of_run(const RunFolder& run, const Config& config, const Plan& plan);

}  // namespace simplescale
