// Creates a file that only one of several processes may create, also on several hosts. Any thread.
// Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Creates `path` with these contents. false: it exists already. No reader sees a part of it. io.
Result<bool> create_file(const std::string& path, const std::string& contents);

}  // namespace simplescale
