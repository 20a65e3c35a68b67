// Keeps other users out of a run: by the folder control/, of mode 0700, and by the key in it, 32
// random bytes for each start of the run. A process that knows the key may connect to the run's
// processes (transport/caf/proof.hpp). Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

constexpr size_t kRunKeyBytes = 32;

/// Call this before the process reads or writes anything in a run folder, to train there or to
/// start commands from it. In the folder of a run or a sweep, it removes the group's right to write
/// the folder, all rights of other users to control/, and their right to write what is in either
/// folder. bad_config: the folder, or something in it or in control/, belongs to another user (all
/// but control/ may be root's); other users may write the folder, or may have written a file that
/// leads to commands; or the folder is root's, writable by its group, and has no sticky bit. ok:
/// also if the folder does not exist. io.
Status keep_others_out(const RunFolder& run);
/// Creates the run folder and its folder control/. From the first moment only this user can enter
/// control/, whatever the umask is. Errors as keep_others_out(), or if a folder cannot be created.
Status make_control(const RunFolder& run);
/// bad_data: another user than root owns the file or folder, or may write it, or it is a link; io.
Status check_own(const std::string& path);

/// Writes a new key, replacing an old one atomically. io.
Status make_run_key(const RunFolder& run);
/// Writes a new key if there is none. If several processes call this, the first one writes the key.
/// io.
Status make_first_run_key(const RunFolder& run);
/// io: the key cannot be read, for instance because another user owns it; bad_data: it is not a
/// key, or other users may have written it.
Result<std::string> read_run_key(const RunFolder& run);

}  // namespace simplescale
