// What keeps other users out of a run: the folder control/, of mode 0700, and the key of a start of
// the run in it, 32 random bytes. A process that knows the key may connect to the run's processes
// (transport/caf/proof.hpp). Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

constexpr size_t kRunKeyBytes = 32;

/// Makes the run folder, which other users cannot write, and its folder control/, which only this
/// user can enter from the first moment, whatever the umask is. Makes a wider control/ of this user
/// narrower. bad_config: one of them cannot be made or belongs to another user (a run folder may
/// belong to root), or users outside its group may write the run folder and it has no sticky bit.
Status make_control(const RunFolder& run);
/// bad_data: another user owns the file or folder, or may write it, or it is a link; io.
Status check_own(const std::string& path);

/// Writes a new key, replacing an old one atomically. io.
Status make_run_key(const RunFolder& run);
/// io: the key cannot be read, for instance because another user owns it; bad_data: it is not a
/// key, or other users may have written it.
Result<std::string> read_run_key(const RunFolder& run);

}  // namespace simplescale
