// Whether another user may have prepared a folder, or may change what a process writes there: with a
// link under a name that the process will use, for instance. Blocks on the disk.
//
//   FILE-2  Checkpoints and tokens go to no folder of another user, unless the user says so.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// True for this user and root.
bool is_trusted(uid_t owner);

/// bad_config: the folder, or the link of this name, belongs to another user than root; all users may
/// write it; or it is not this user's, and its group may write it and it has no sticky bit. advice:
/// ends the message. ok: also without a folder. io.
Status check_own_folder(const std::string& path, const std::string& advice);

/// bad_config: something directly in the folder belongs to another user. visit: called for each entry
/// that does not; its error ends the check. ok: also without a folder. io.
Status check_own_entries(
    const std::string& folder, const std::string& advice,
    const std::function<Status(const std::string& path, const struct stat& entry)>& visit = {});

/// check_own_folder(), and check_own_entries() unless the folder is this user's own: a group that may
/// write that one shares it. key: the one that names the folder.
Status check_output_folder(const std::string& path, const std::string& key);

}  // namespace simplescale
