// UTF-8: validity and code points. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace simplescale {

/// Index of the first byte that is not part of valid UTF-8; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

/// The text with U+FFFD for each longest piece of bytes that is not UTF-8, as Rust's
/// from_utf8_lossy() and Python's errors="replace" do.
std::string replace_invalid_utf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;
};
/// The code point at text[at]. Requires valid UTF-8 and at < text.size().
inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

/// Where the code point that ends before text[end] begins. Requires valid UTF-8 and end > 0.
inline size_t code_point_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

/// A path as UTF-8 text, which files of TOML and JSON must be: each byte that is no part of valid UTF-8
/// becomes a NUL, which no path has, and two hex digits. In such a file it looks so: "caf\u0000E9".
std::string path_as_text(std::string_view path);
/// The path that path_as_text() made the text from. Other NULs stay.
std::string path_of_text(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

}  // namespace simplescale
