#include "runtime/base/printable.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

constexpr std::array<std::string_view, 6> kColors = {"\033[0m",  "\033[1m",  "\033[31m",
                                                     "\033[32m", "\033[33m", "\033[36m"};

/// Bytes of the UTF-8 character at the beginning of the text; 1 if there is none.
size_t character_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  const size_t bytes = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
  return first_invalid_utf8(text.substr(0, bytes)) == bytes ? bytes : 1;
}

/// True for a control character (of one byte, or C1 as UTF-8), and for a byte of no character: in an
/// overlong form a lax terminal reads a control character.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() > 1) return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
  return (first < ' ' && first != '\n' && first != '\t') || first >= 0x7f;
}

std::string filtered(std::string_view text, bool keep_colors) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto* color = std::ranges::find_if(
        kColors, [&](std::string_view sequence) { return text.starts_with(sequence); });
    const bool keep = keep_colors && color != kColors.end();
    const size_t bytes = keep ? color->size() : character_bytes(text);
    if (!keep && is_control(text.substr(0, bytes)))
      out += '?';
    else
      out += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return filtered(text, false);
}

std::string printable_painted(std::string_view text) {
  return filtered(text, true);
}

}  // namespace simplescale
