// The last line of a process's log, which says why it ended. Any thread; blocks on the disk.
#pragma once

#include <string>

namespace simplescale {

/// The last line of the file that is not empty, without "simplescale: ", and of a logged error without
/// its time and process; at most the last 4 KiB; "" without one.
std::string last_line(const std::string& path);

}  // namespace simplescale
