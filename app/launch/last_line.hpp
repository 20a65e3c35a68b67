// The last line of a process's log, which says why the process ended. Any thread; blocks on the
// disk.
#pragma once

#include <string>

namespace simplescale {

/// The last non-empty line of the file, at most its last 4 KiB, without the prefix "simplescale: "; of
/// a logged error also without its time and process. "" if there is none.
std::string last_line(const std::string& path);

}  // namespace simplescale
