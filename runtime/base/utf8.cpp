#include "runtime/base/utf8.hpp"

#include <charconv>
#include <cstring>

namespace simplescale {

size_t first_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    uint64_t eight = 0;
    if (i + 8 <= size) {
      std::memcpy(&eight, bytes + i, 8);
      if ((eight & 0x8080808080808080u) == 0) {  // eight ASCII characters at once
        i += 8;
        continue;
      }
    }
    const unsigned char lead = bytes[i];
    const size_t length = lead < 0x80                    ? 1
                          : lead >= 0xC2 && lead <= 0xDF ? 2
                          : (lead & 0xF0) == 0xE0        ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (length == 0 || i + length > size) return i;
    for (size_t k = 1; k < length; ++k)
      if ((bytes[i + k] & 0xC0) != 0x80) return i;
    // Overlong forms, surrogates and code points beyond U+10FFFF.
    if (length > 2) {
      const unsigned char second = bytes[i + 1];
      if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
          (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
        return i;
    }
    i += length;
  }
  return size;
}

namespace {
/// How many bytes at the front of `bad`, which is no valid UTF-8, are the longest beginning of a
/// valid code point; at least 1.
size_t broken_length(std::string_view bad) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bad[i]); };
  const unsigned lead = byte(0);
  const size_t wanted = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : (lead & 0xF0) == 0xE0        ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 1;
  size_t good = 1;
  for (; good < wanted && good < bad.size(); ++good) {
    const unsigned next = byte(good);
    unsigned low = 0x80, high = 0xBF;
    if (good == 1 && lead == 0xE0) low = 0xA0;
    if (good == 1 && lead == 0xED) high = 0x9F;
    if (good == 1 && lead == 0xF0) low = 0x90;
    if (good == 1 && lead == 0xF4) high = 0x8F;
    if (next < low || next > high) break;
  }
  return good;
}
}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t good = first_invalid_utf8(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(broken_length(text));
  }
  return out;
}

std::string path_as_text(std::string_view path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  while (true) {
    const size_t good = first_invalid_utf8(path);
    out += path.substr(0, good);
    if (good == path.size()) return out;
    const auto byte = static_cast<unsigned char>(path[good]);
    out += '\0';
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
    path.remove_prefix(good + 1);
  }
}

std::string path_of_text(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    unsigned byte = 0;
    // Only bytes of no ASCII character are written so: the text cannot hide a '/'.
    const bool escaped =
        text[at] == '\0' && at + 2 < text.size() &&
        std::from_chars(&text[at + 1], &text[at + 1] + 2, byte, 16).ptr == &text[at + 1] + 2 &&
        byte >= 0x80;
    out += escaped ? static_cast<char>(byte) : text[at];
    if (escaped) at += 2;
  }
  return out;
}

void append_utf8(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | (c >> 12));
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xF0 | (c >> 18));
    tail(12), tail(6), tail(0);
  }
}

}  // namespace simplescale
