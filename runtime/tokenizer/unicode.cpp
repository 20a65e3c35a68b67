#include "runtime/tokenizer/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

constexpr char32_t code_points = 0x110000;
using CodePoints = std::bitset<code_points>;

int class_of(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

/// True if some dozens of neighbouring characters may be marks, which normal forms put in order.
bool has_many_marks(std::string_view text) {
  size_t marks = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c.value));
    // What a character becomes may be marks alone.
    marks =
        property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX ? marks + 1 : 0;
    if (marks > 32) return true;
  }
  return false;
}

/// The text with its characters divided and marks in order, which has the same normal forms.
std::string with_marks_in_order(std::string_view text, utf8proc_option_t options) {
  std::string out;
  std::vector<utf8proc_int32_t> marks;
  const auto append_marks = [&] {
    std::ranges::stable_sort(marks, {}, class_of);
    for (const utf8proc_int32_t mark : marks) append_utf8(out, static_cast<char32_t>(mark));
    marks.clear();
  };
  const auto divides =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (options & UTF8PROC_COMPAT));
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    utf8proc_int32_t parts[32];
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts,
                                               std::ssize(parts), divides, nullptr);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      if (class_of(parts[i]) != 0) {
        marks.push_back(parts[i]);
        continue;
      }
      append_marks();
      append_utf8(out, static_cast<char32_t>(parts[i]));
    }
  }
  append_marks();
  return out;
}

std::string mapped(std::string_view text, utf8proc_option_t options) {
  std::string ordered;  // utf8proc itself needs a time that grows with the square of many marks
  if (has_many_marks(text)) text = ordered = with_marks_in_order(text, options);
  utf8proc_uint8_t* out = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  if (size < 0) {
    if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
    return std::string(text);  // not valid UTF-8, which callers exclude
  }
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, std::free);
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

bool is_jamo_that_composes(char32_t c) {
  return (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2);
}

/// The code points that NFC keeps, whatever is before them: starters that are in NFC alone and are
/// never the second of a composition (NFC_Quick_Check = Yes, class 0, of UAX 15).
std::unique_ptr<CodePoints> find_stable() {
  auto stable = std::make_unique<CodePoints>();
  stable->set();
  for (char32_t c = 0x80; c < code_points; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0 || is_jamo_that_composes(c)) stable->reset(c);
    const bool hangul = c >= 0xAC00 && c <= 0xD7A3;
    if (hangul || property->decomp_type != 0 || property->decomp_seqindex == UINT16_MAX) continue;
    std::string text;
    append_utf8(text, c);
    if (mapped(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE)) != text) {
      stable->reset(c);  // NFC replaces it
      continue;
    }
    // It is a composition: of its two parts, one decomposition deep, the last one composes.
    const std::string parts =
        mapped(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
    stable->reset(code_point_at(parts, code_point_before(parts, parts.size())).value);
  }
  return stable;
}

std::string to_nfc(std::string_view text) {
  static const std::unique_ptr<const CodePoints> stable = find_stable();
  constexpr char32_t first_unstable = 0x300;
  std::string out;
  size_t kept = 0;   // text before is in `out`
  size_t begin = 0;  // of the newest stable code point
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value < first_unstable || (*stable)[c.value]) {
      begin = at;
      at += c.bytes;
      continue;
    }
    size_t end = at;  // of the code points that may change together with that at `begin`
    while (end < text.size()) {
      const CodePoint next = code_point_at(text, end);
      if ((*stable)[next.value]) break;
      end += next.bytes;
    }
    out += text.substr(kept, begin - kept);
    out += mapped(text.substr(begin, end - begin),
                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    kept = begin = at = end;
  }
  if (kept == 0) return std::string(text);
  out += text.substr(kept);
  return out;
}

}  // namespace

std::string to_normal_form(std::string_view text, NormalForm form) {
  switch (form) {
    case NormalForm::nfc:
      return to_nfc(text);
    case NormalForm::nfd:
      return mapped(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
    case NormalForm::nfkc:
      return mapped(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE |
                                                         UTF8PROC_COMPAT));
    case NormalForm::nfkd:
      return mapped(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                         UTF8PROC_COMPAT));
  }
  return std::string(text);
}

std::string to_lowercase(std::string_view text) {
  constexpr char32_t capital_i_with_dot = 0x130;  // the only one that becomes two
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    if (c.value == capital_i_with_dot)
      out += "i\xCC\x87";
    else
      append_utf8(out,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
  }
  return out;
}

std::string without_marks(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c.value));
    if (category < UTF8PROC_CATEGORY_MN || category > UTF8PROC_CATEGORY_ME)
      out += text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
             (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);  // Alphabetic symbols
  }
}

}  // namespace simplescale
