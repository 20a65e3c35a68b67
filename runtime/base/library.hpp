// Shared libraries of ours that only some machines can load: those that need a GPU's driver.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The address of `symbol` in `library`, a file beside this program. Loads it on first use, which
/// takes a second or two, and never unloads it. unavailable with the reason, at once where this
/// machine has no NVIDIA driver. Any thread.
Result<void*> load_gpu_symbol(const std::string& library, const std::string& symbol);

}  // namespace simplescale
