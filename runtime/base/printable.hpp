// Makes text that comes from a log, a file or another process safe to show on a terminal, which
// would obey the control characters in it. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace simplescale {

/// The text with '?' in place of every control character but newline and tab: C0, DEL, and C1 both
/// as UTF-8 (C2 80 to C2 9F) and as single bytes that are no part of a UTF-8 character.
std::string printable(std::string_view text);

/// The same, but keeps the colours that this program uses itself (ESC [ 31 m and a few others). For
/// text whose parts from elsewhere are printable() already.
std::string printable_painted(std::string_view text);

}  // namespace simplescale
