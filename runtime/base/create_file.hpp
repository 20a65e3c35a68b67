// Creates a file that only one of several processes may create, also on several hosts. Any thread.
// Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Creates `path` with these contents. false: it exists already. No reader sees a part of it. room: a
/// file that the caller made with reserve_room(), or "". It becomes `path`, which so needs no more
/// space on a full disk. io.
Result<bool> create_file(const std::string& path, const std::string& contents,
                         const std::string& room = "");

/// Writes the file `room`, of kRoomBytes, for a later create_file() in the same folder. io.
inline constexpr size_t kRoomBytes = 4096;
Status reserve_room(const std::string& room);

}  // namespace simplescale
