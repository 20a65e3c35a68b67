#include "runtime/data/json_row.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

/// U+10FFFF, which is no character, as an escape. In place of half a surrogate pair. A text may hold
/// it, but if the text is another one with U+10FFFE, it has half a pair.
constexpr std::string_view half_pair = "\\udbff\\udfff", other_half_pair = "\\udbff\\udffe";

/// The unit of UTF-16 of the escape \uXXXX at the front of the text; 0: there is none.
unsigned escaped_unit(std::string_view text) {
  unsigned unit = 0;
  if (text.size() < 6 || !text.starts_with("\\u")) return 0;
  return std::from_chars(text.data() + 2, text.data() + 6, unit, 16).ptr == text.data() + 6 ? unit
                                                                                            : 0;
}

/// A JSON string with stand_in for each half of a surrogate pair that lacks the other one.
std::string without_half_pairs(std::string_view text, std::string_view stand_in) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const unsigned kind = escaped_unit(text.substr(at)) & 0xFC00;
    const size_t bytes = kind == 0xD800 || kind == 0xDC00 ? 6 : text[at] == '\\' ? 2 : 1;
    const bool pair = kind == 0xD800 && (escaped_unit(text.substr(at + 6)) & 0xFC00) == 0xDC00;
    out += bytes == 6 && !pair ? stand_in : text.substr(at, pair ? 12 : bytes);
    at += pair ? 12 : bytes;
  }
  return out;
}

/// The line without what Python's json writes and reads, but nlohmann's does not: null for NaN,
/// Infinity, -Infinity, and numbers that are too large for a double; stand_in for half a pair.
std::string without_oddities(std::string_view line, std::string_view stand_in) {
  std::string out;
  for (size_t at = 0; at < line.size();) {
    const auto end_of = [&](std::string_view characters) {
      return std::min(line.find_first_not_of(characters, at), line.size());
    };
    size_t end = at + 1;
    bool odd = false;
    if (line[at] == '"') {
      while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, line.size());
      out += without_half_pairs(line.substr(at, end - at), stand_in);
      at = end;
      continue;
    }
    if (end_of("-NaInfity") > at + 1) {
      end = end_of("-NaInfity");
      const std::string_view word = line.substr(at, end - at);
      odd = word == "NaN" || word == "Infinity" || word == "-Infinity";
    } else if (end_of("-+.eE0123456789") > at) {
      end = end_of("-+.eE0123456789");
      double value = 0;
      odd = std::from_chars(line.data() + at, line.data() + end, value).ec ==
            std::errc::result_out_of_range;
    }
    out += odd ? "null" : line.substr(at, end - at);
    at = end;
  }
  return out;
}

/// The value in a JSON line. bad_data says what is wrong with it.
Result<nlohmann::json> parse_line(std::string_view line, std::string_view stand_in = half_pair) {
  try {
    nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (value.is_discarded()) value = nlohmann::json::parse(without_oddities(line, stand_in));
    return value;
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string what = error.what();
    const size_t column = what.find("column ");
    const std::string said = what.substr(column == what.npos ? what.find("] ") + 2 : column);
    constexpr size_t kShown = 200;  // it ends with the value that was read last
    return Status(Code::bad_data, "it is no JSON (each line must hold a whole object): " +
                                      replace_invalid_utf8(said.substr(0, kShown)));
  }
}

/// The text of a JSON line. bad_data names the texts that it has.
Result<std::string> text_of(const nlohmann::json& object, const std::string& key) {
  if (!object.is_object())
    return Status(Code::bad_data, "it is no JSON object, such as {\"" + key + "\": \"...\"}");
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get<std::string>();
  std::string members;
  bool nested = false;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string()) members += (members.empty() ? "" : ", ") + name;
    nested = nested || value.is_structured();
  }
  return Status(Code::bad_data, "it has no text \"" + key + "\" (data.text_key); its texts are: " +
                                    (members.empty() ? "none" : members) +
                                    (nested ? "; those inside of other members are not read" : ""));
}

/// A short text of a value. No recursion: a line may nest lists a million deep.
std::string shown(const nlohmann::json& value) {
  const bool flat = value.is_array() && value.size() <= 4 &&
                    std::ranges::none_of(value, [](const auto& v) { return v.is_structured(); });
  if (value.is_primitive() || flat) return value.dump().substr(0, 60);
  return value.is_array() ? "another list" : "an object";
}

/// read_json_mask() of a value.
Result<IndexRanges> mask_of(const nlohmann::json& value, const std::string& key,
                            std::string_view text) {
  const std::string list = "\"" + key + "\" (data.loss_mask_key)";
  if (!value.is_array())
    return Status(Code::bad_data, list + " is no list of ranges: [[begin, end], ...]");
  std::vector<IndexRange> ranges;
  for (const auto& range : value) {
    const std::string which = list + ": range " + std::to_string(ranges.size());
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
        !range[1].is_number_unsigned() || range[0] > range[1])
      return Status(Code::bad_data, which + " is " + shown(range) +
                                        "; it must be [begin, end]: characters of the text, from "
                                        "0, and begin no more than end");
    ranges.push_back({range[0], range[1]});
  }
  IndexRanges characters = union_of(std::move(ranges));
  uint64_t character = 0;
  size_t byte = 0;
  for (IndexRange& range : characters)
    for (uint64_t* bound : {&range.begin, &range.end}) {
      for (; character < *bound && byte < text.size(); ++character)
        byte += code_point_at(text, byte).bytes;
      if (character < *bound)
        return Status(Code::bad_data, list + ": [" + std::to_string(range.begin) + ", " +
                                          std::to_string(range.end) +
                                          "] is beyond the text, which has " +
                                          std::to_string(character) + " characters");
      *bound = byte;
    }
  return characters;
}

}  // namespace

Result<JsonRow> read_json_row(std::string_view line, const std::string& text_key,
                              const std::string& mask_key) {
  SS_ASSIGN(const nlohmann::json object, parse_line(line));
  JsonRow row;
  SS_ASSIGN(row.text, text_of(object, text_key));
  if (row.text.find("\xF4\x8F\xBF\xBF") != row.text.npos && !nlohmann::json::accept(line)) {
    SS_ASSIGN(const nlohmann::json other, parse_line(line, other_half_pair));
    SS_ASSIGN(const std::string text, text_of(other, text_key));
    if (text != row.text)
      return Status(Code::bad_data, "its text \"" + text_key +
                                        "\" has half a surrogate pair (\\ud800 to \\udfff without "
                                        "the other half), which no UTF-8 can hold");
  }
  const auto mask = object.find(mask_key);
  if (!mask_key.empty() && mask != object.end() && !mask->is_null()) {
    SS_ASSIGN(row.masked, mask_of(*mask, mask_key, row.text));
  }
  return row;
}

Result<IndexRanges> read_json_mask(std::string_view json, const std::string& mask_key,
                                   std::string_view text) {
  SS_ASSIGN(const nlohmann::json value, parse_line(json));
  return mask_of(value, mask_key, text);
}

}  // namespace simplescale
