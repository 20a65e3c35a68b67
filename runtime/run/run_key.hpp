// What keeps other users out of a run: the folder control/, of mode 0700, and the key of a start of
// the run in it, 32 random bytes. A process that knows the key may connect to the run's processes
// (transport/caf/proof.hpp). Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

constexpr size_t kRunKeyBytes = 32;

/// What every process that trains in a run folder, or starts commands from it, calls before it reads
/// or writes anything there. In the folder of a run or a sweep, takes from the group the right to
/// write it, from all others every right to control/, and the right to write from what is in both.
/// bad_config: the folder, or something in it or in control/, belongs to another user (all but
/// control/ may be root's); other users may write the folder, or may have written a file that leads
/// to commands; or a folder of root, without the sticky bit, is writable by its group. ok: also
/// without a folder. io.
Status keep_others_out(const RunFolder& run);
/// Makes the run folder and its folder control/, which only this user can enter from the first
/// moment, whatever the umask is. Errors as keep_others_out(), or one of them cannot be made.
Status make_control(const RunFolder& run);
/// bad_data: another user but root owns the file or folder, or may write it, or it is a link; io.
Status check_own(const std::string& path);

/// Writes a new key, replacing an old one atomically. io.
Status make_run_key(const RunFolder& run);
/// Writes a new key unless there is one: of several processes that call this, the first writes it.
/// io.
Status make_first_run_key(const RunFolder& run);
/// io: the key cannot be read, for instance because another user owns it; bad_data: it is not a
/// key, or other users may have written it.
Result<std::string> read_run_key(const RunFolder& run);

}  // namespace simplescale
