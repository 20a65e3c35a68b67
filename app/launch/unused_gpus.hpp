// Tells of GPUs that a run with cluster.device = "auto" does not use.
#pragma once

#include <string>

#include "runtime/config/config.hpp"

namespace simplescale {

/// Why trainers of this host would compute on its CPUs although it has GPUs of NVIDIA, as a warning;
/// "" if they would not, or if the configuration says "cpu" or "cuda", where they are refused. Loads
/// the GPUs' libraries, 1 to 2 s, if there are GPUs. Blocks.
std::string unused_gpus(const Config& config);

}  // namespace simplescale
