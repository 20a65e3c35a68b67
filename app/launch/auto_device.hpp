// Which device cluster.device = "auto" means on this host.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// Where "auto" means GPUs, makes it "cuda": the plan, the memory estimate and the checks of this
/// host are then those of GPUs. usable: whether trainers can use the GPUs that the host has. Returns
/// why not, as a warning; "" if there is nothing to tell.
std::string take_gpus(LoadedConfig& loaded, const Status& usable);
/// The same of this host: with "auto" and a GPU of NVIDIA it loads the GPUs' libraries, which takes
/// 1 to 2 s. Blocks.
std::string resolve_device(LoadedConfig& loaded);

}  // namespace simplescale
