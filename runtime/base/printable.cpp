#include "runtime/base/printable.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

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

std::string escaped(unsigned number, int digits, const char* before) {
  char text[8];
  std::snprintf(text, sizeof text, "%s%0*x", before, digits, number);
  return text;
}

/// "\\u202e" for a character that changes the direction of text around it, or ends a line; "" for
/// any other one. Terminals and editors obey them: what is shown differs from what is stored.
std::string escape_of(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  unsigned code = 0;
  if (character.size() == 2) code = (byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu);
  if (character.size() == 3)
    code = (byte(0) & 0xfu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
  const bool changes = code == 0x61c || code == 0x200e || code == 0x200f ||
                       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return changes ? escaped(code, 4, "\\u") : "";
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
    else if (const std::string escape = escape_of(text.substr(0, bytes)); !escape.empty())
      out += escape;
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

std::string shown_name(std::string_view name, size_t bytes_max) {
  std::string out;
  const auto add = [&](std::string_view part) {
    while (!part.empty()) {
      const size_t bytes = character_bytes(part);
      const std::string_view character = part.substr(0, bytes);
      const std::string escape = escape_of(character);
      if (!escape.empty())
        out += escape;
      else if (character == "\n" || character == "\t")
        out += character == "\n" ? "\\n" : "\\t";
      else if (is_control(character))
        for (const char c : character) out += escaped(static_cast<unsigned char>(c), 2, "\\x");
      else
        out += character;
      part.remove_prefix(bytes);
    }
  };
  if (name.size() <= bytes_max) {
    add(name);
    return out;
  }
  size_t head = bytes_max / 2, tail = name.size() - bytes_max / 4;  // not within a character
  while (head > 0 && (name[head] & 0xc0) == 0x80) --head;
  while (tail < name.size() && (name[tail] & 0xc0) == 0x80) ++tail;
  add(name.substr(0, head));
  out += "…";
  add(name.substr(tail));
  return out + " (" + std::to_string(name.size()) + " bytes)";
}

}  // namespace simplescale
