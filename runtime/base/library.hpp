// Loads our own shared libraries: those that need an NVIDIA driver and so cannot be linked, and
// those that few runs need.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The oldest GPUs for which our libraries are built: compute capability 8.0, Ampere. The list is in
/// cmake/cuda.cmake.
constexpr int kOldestGpuMajor = 8;

/// The address of `symbol` in `library`, a file in the folder of this program. The first call loads
/// the library; it is never unloaded. unavailable: why not, with `advice` if there is no such file.
/// Any thread.
Result<void*> load_symbol(const std::string& library, const std::string& symbol,
                          const std::string& advice);
/// Loads NVIDIA's driver, which stays loaded. unavailable: why it cannot. Any thread.
Status load_gpu_driver();
/// load_symbol() of a library for GPUs, which takes 1 to 2 s at first. unavailable at once on a
/// machine without an NVIDIA driver.
Result<void*> load_gpu_symbol(const std::string& library, const std::string& symbol);

}  // namespace simplescale
