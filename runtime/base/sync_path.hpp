// Makes a file or a folder durable. Any thread; blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Syncs a file, or the names in a folder. ok also for a kind of file that cannot be synced, like a
/// pipe. not_found, io.
Status sync_path(const std::string& path);

}  // namespace simplescale
