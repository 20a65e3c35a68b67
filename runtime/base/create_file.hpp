// Creates a file that only one of several processes may create, also on several hosts. Any thread.
// Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Creates `path` with these contents. false: it exists already. No reader sees a part of it. room: a
/// file of reserve_room(), whose room the new file takes, so that a full disk takes it; none: "". io.
Result<bool> create_file(const std::string& path, const std::string& contents,
                         const std::string& room = "");

/// Creates or keeps the file `room`, in the folder of a file that create_file() may create later, with
/// room for kRoomBytes of contents. io.
inline constexpr size_t kRoomBytes = 4096;
Status reserve_room(const std::string& room);

}  // namespace simplescale
