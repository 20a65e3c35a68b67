// Makes text that comes from a log, a file or another process safe to show on a terminal, which
// would obey the control characters in it. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace simplescale {

/// The text with '?' in place of every control character but newline and tab: C0, DEL, and C1 both
/// as UTF-8 (C2 80 to C2 9F) and as single bytes that are no part of a UTF-8 character. Characters
/// that change the direction of text or end a line (U+2028) are shown as "\u202e".
std::string printable(std::string_view text);

/// The same, but keeps the colours that this program uses itself (ESC [ 31 m and a few others). For
/// text whose parts from elsewhere are printable() already.
std::string printable_painted(std::string_view text);

/// A name or value from a file, for a message of one line: what printable() would change, and also
/// newline and tab, is shown as "\n" or "\x1b". Of more than bytes_max bytes only both ends are
/// shown, and how many bytes there are.
std::string shown_name(std::string_view name, size_t bytes_max = 200);

}  // namespace simplescale
