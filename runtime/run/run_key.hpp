// The key of a start of a run: 32 random bytes in control/key, which only its owner can read. Who
// has it may connect to the run's processes (transport/caf/proof.hpp). Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

constexpr size_t kRunKeyBytes = 32;

/// A new key in place of the old one. io.
Status make_run_key(const RunFolder& run);
/// io: it cannot be read, perhaps because it is somebody else's; bad_data: it is not a key.
Result<std::string> read_run_key(const RunFolder& run);

}  // namespace simplescale
