// Writes all bytes of a text to a file, where one call of the system may write only a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace simplescale {

/// Writes `text` from its byte `done` on: at `begin` + `done`, or at the end if the file was opened
/// with O_APPEND. Sets `done` to the bytes that are written. False: errno says why it is not all of
/// them. Blocks. Any thread.
bool write_whole(int fd, std::string_view text, size_t& done, int64_t begin = 0);

}  // namespace simplescale
