// What a file is by its first bytes. Pure functions, any thread.
#pragma once

#include <string_view>

namespace simplescale {

/// Bytes of a file's beginning that tell more than fewer do.
inline constexpr size_t kKnownBytes = 1024;

/// "a .gz file", "a zip archive", ...: what begins with these bytes and holds neither text nor bare
/// tokens. "": none that is known. bytes: the first kKnownBytes of a file, or all of a shorter one.
std::string_view kind_of_bytes(std::string_view bytes);

/// True if no text begins so: control characters, or not UTF-8. The last character may be cut.
bool is_binary(std::string_view bytes);

/// True if the bytes begin a text (a web page, JSON, a pointer of Git LFS) and hardly anything else: at
/// least 16 that are not binary, or 64 without control characters.
bool begins_as_text(std::string_view bytes);

}  // namespace simplescale
