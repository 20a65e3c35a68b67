// The key of a start of a run: 32 random bytes in control/key, readable by its owner only. A
// process that knows the key may connect to the run's processes (transport/caf/proof.hpp). Blocks
// on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

constexpr size_t kRunKeyBytes = 32;

/// Writes a new key, replacing an old one atomically. io.
Status make_run_key(const RunFolder& run);
/// io: the key cannot be read, for instance because another user owns it; bad_data: it is not a
/// key.
Result<std::string> read_run_key(const RunFolder& run);

}  // namespace simplescale
