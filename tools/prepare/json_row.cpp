#include "tools/prepare/json_row.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
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

/// A part of a value, as the parser reads it. The parser's own memory for nested values is a bit for
/// each level.
struct Token {
  enum Kind : unsigned char { text, whole, other, begin_object, begin_list, end } kind;
  std::string* string = nullptr;  // of a text; may be moved from
  uint64_t number = 0;            // whole: not negative
  std::string_view shown = {};    // other: as in the line, null for null
  bool begins() const { return kind == begin_object || kind == begin_list; }
};

/// Calls take(member, depth, token) for each token of a value. member: of the outermost object, in
/// which the token lies; the object is at depth 0, the member's value at depth 1.
template <class Take>
struct Sax {
  explicit Sax(Take take_token) : take(std::move(take_token)) {}
  Take take;
  std::string member, error;
  size_t depth = 0;  // of the next value

  bool put(Token token) {
    if (token.kind == Token::end) --depth;
    take(member, depth, token);
    if (token.begins()) ++depth;
    return true;
  }
  bool null() { return put({.kind = Token::other, .shown = "null"}); }
  bool boolean(bool value) {
    return put({.kind = Token::other, .shown = value ? "true" : "false"});
  }
  bool number_unsigned(uint64_t value) { return put({.kind = Token::whole, .number = value}); }
  bool number_integer(int64_t value) {
    const std::string text = std::to_string(value);
    return put({.kind = Token::other, .shown = text});
  }
  bool number_float(double, const std::string& text) {
    return put({.kind = Token::other, .shown = text});
  }
  bool string(std::string& text) { return put({.kind = Token::text, .string = &text}); }
  bool binary(nlohmann::json::binary_t&) { return true; }  // not in a text
  bool key(std::string& name) {
    if (depth == 1) member = std::move(name);
    return true;
  }
  bool start_object(size_t) { return put({.kind = Token::begin_object}); }
  bool end_object() { return put({.kind = Token::end}); }
  bool start_array(size_t) { return put({.kind = Token::begin_list}); }
  bool end_array() { return put({.kind = Token::end}); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& why) {
    error = why.what();
    return false;
  }
};

/// Reads the value in a JSON line with a copy of `empty`, whose take() Sax calls. bad_data says what is
/// wrong with the value.
template <class Reader>
Result<Reader> parse_line(std::string_view line, const Reader& empty,
                          std::string_view stand_in = half_pair) {
  Reader reader = empty;
  const auto parse = [&](std::string_view text) {
    Sax sax([&](const std::string& member, size_t depth, const Token& token) {
      reader.take(member, depth, token);
    });
    return nlohmann::json::sax_parse(text, &sax) ? std::string() : sax.error;
  };
  if (parse(line).empty()) return reader;
  reader = empty;
  const std::string what = parse(without_oddities(line, stand_in));
  if (what.empty()) return reader;
  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
  const size_t column = what.find("column ");
  const std::string said = what.substr(column == what.npos ? what.find("] ") + 2 : column);
  constexpr size_t kShown = 200;  // it ends with the value that was read last
  return Status(Code::bad_data, "it is no JSON (each line must hold a whole object): " +
                                    replace_invalid_utf8(said.substr(0, kShown)));
}

/// A short text of a token.
std::string shown(const Token& token) {
  constexpr size_t kShown = 60;
  switch (token.kind) {
    case Token::whole:
      return std::to_string(token.number);
    case Token::text:
      return nlohmann::json(token.string->substr(0, kShown))
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
          .substr(0, kShown);
    case Token::other:
      return std::string(token.shown.substr(0, kShown));
    default:
      return token.kind == Token::begin_list ? "another list" : "an object";
  }
}

/// A list of ranges.
class MaskReader {
 public:
  /// depth: of the list's own tokens 0.
  void take(size_t depth, const Token& token) {
    constexpr uint64_t kPair = 2, kShownMost = 4;
    if (depth == 0 && token.kind != Token::end) {
      *this = {};
      is_list_ = token.kind == Token::begin_list;
      is_null_ = token.kind == Token::other && token.shown == "null";
    }
    if (!is_list_ || !bad_.empty()) return;
    if (depth == 1 && token.kind == Token::begin_list) {
      numbers_ = elements_ = 0;
      text_ = "[";
    } else if (depth == 1 && token.kind == Token::end) {
      if (elements_ != kPair || numbers_ != kPair || pair_[0] > pair_[1])
        bad_ = elements_ <= kShownMost ? text_ + "]" : "another list";
      else
        ranges_.push_back({pair_[0], pair_[1]});
    } else if (depth == 1) {
      bad_ = shown(token);
    } else if (depth == 2 && token.begins()) {
      bad_ = "another list";
    } else if (depth == 2) {
      if (token.kind == Token::whole && elements_ < kPair) pair_[elements_] = token.number;
      numbers_ += token.kind == Token::whole;
      if (++elements_ <= kShownMost) text_ += (elements_ == 1 ? "" : ",") + shown(token);
    }
  }
  bool is_null() const { return is_null_; }

  /// As read_json_mask().
  Result<IndexRanges> masked(const std::string& key, std::string_view text) &&;

 private:
  bool is_list_ = false, is_null_ = true;
  std::vector<IndexRange> ranges_;
  std::string bad_, text_;  // of the first range that is none; of the one that is being read
  uint64_t pair_[2] = {}, numbers_ = 0, elements_ = 0;
};

Result<IndexRanges> MaskReader::masked(const std::string& key, std::string_view text) && {
  const std::string list = "\"" + key + "\" (data.loss_mask_key)";
  if (!is_list_) return Status(Code::bad_data, list + " is no list of ranges: [[begin, end], ...]");
  if (!bad_.empty())
    return Status(Code::bad_data, list + ": range " + std::to_string(ranges_.size()) + " is " +
                                      bad_ +
                                      "; it must be [begin, end]: characters of the text, from "
                                      "0, and begin no more than end");
  IndexRanges characters = union_of(std::move(ranges_));
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

/// The text of a row and its mask; of the other members only what the error of a row without text
/// tells.
class RowReader {
 public:
  RowReader(const std::string& text_key, const std::string& mask_key)
      : text_key_(&text_key), mask_key_(&mask_key) {}

  void take(const std::string& member, size_t depth, const Token& token) {
    if (depth == 0) is_object_ = is_object_ || token.kind == Token::begin_object;
    if (depth == 0 || !is_object_) return;
    if (!mask_key_->empty() && member == *mask_key_) mask_.take(depth - 1, token);
    if (depth > 1) return;
    nested_ = nested_ || token.begins();
    if (member == *text_key_ && token.kind != Token::end) {
      text_.reset();
      if (token.kind == Token::text) text_ = std::move(*token.string);
    } else if (token.kind == Token::text) {
      texts_.insert(member.substr(0, kNameShown));
      if (texts_.size() > kNamed) texts_.erase(std::prev(texts_.end()));
    }
  }

  /// bad_data names the texts that it has.
  Result<std::string> text() && {
    if (!is_object_)
      return Status(Code::bad_data,
                    "it is no JSON object, such as {\"" + *text_key_ + "\": \"...\"}");
    if (text_) return std::move(*text_);
    std::string members;
    for (const std::string& name : texts_) members += (members.empty() ? "" : ", ") + name;
    return Status(Code::bad_data,
                  "it has no text \"" + *text_key_ + "\" (data.text_key); its texts are: " +
                      (members.empty() ? "none" : replace_invalid_utf8(members)) +
                      (nested_ ? "; those inside of other members are not read" : ""));
  }
  MaskReader&& mask() { return std::move(mask_); }

 private:
  static constexpr size_t kNamed = 20, kNameShown = 60;
  const std::string *text_key_, *mask_key_;
  bool is_object_ = false, nested_ = false;
  std::optional<std::string> text_;
  std::set<std::string> texts_;  // names of other members, the first ones
  MaskReader mask_;
};

}  // namespace

Result<JsonRow> read_json_row(std::string_view line, const std::string& text_key,
                              const std::string& mask_key) {
  const RowReader empty(text_key, mask_key);
  SS_ASSIGN(RowReader reader, parse_line(line, empty));
  JsonRow row;
  SS_ASSIGN(row.text, std::move(reader).text());
  if (row.text.find("\xF4\x8F\xBF\xBF") != row.text.npos && !nlohmann::json::accept(line)) {
    SS_ASSIGN(RowReader other, parse_line(line, empty, other_half_pair));
    SS_ASSIGN(const std::string text, std::move(other).text());
    if (text != row.text)
      return Status(Code::bad_data, "its text \"" + text_key +
                                        "\" has half a surrogate pair (\\ud800 to \\udfff without "
                                        "the other half), which no UTF-8 can hold");
  }
  if (MaskReader mask = reader.mask(); !mask.is_null()) {
    SS_ASSIGN(row.masked, std::move(mask).masked(mask_key, row.text));
  }
  return row;
}

namespace {
struct ListReader {
  MaskReader mask;
  void take(const std::string&, size_t depth, const Token& token) { mask.take(depth, token); }
};
}  // namespace

Result<IndexRanges> read_json_mask(std::string_view json, const std::string& mask_key,
                                   std::string_view text) {
  SS_ASSIGN(ListReader reader, parse_line(json, ListReader()));
  return std::move(reader.mask).masked(mask_key, text);
}

namespace {

/// Members as JSON: texts, numbers, and lists of them. What is nested deeper is left out.
struct MembersReader {
  const std::vector<std::string>* wanted;
  JsonMembers found = {};
  bool is_object = false;

  void take(const std::string& member, size_t depth, const Token& token) {
    constexpr size_t kOthers = 64;
    if (depth == 0) is_object = is_object || token.kind == Token::begin_object;
    if (depth == 0 || depth > 2 || !is_object || token.kind == Token::end) return;
    if (std::ranges::find(*wanted, member) == wanted->end()) {
      if (found.others.size() < kOthers) found.others.insert(member.substr(0, kOthers));
      return;
    }
    nlohmann::json value;
    if (token.kind == Token::text) value = std::move(*token.string);
    if (token.kind == Token::whole) value = token.number;
    if (token.kind == Token::begin_list) value = nlohmann::json::array();
    if (token.kind == Token::begin_object) value = nlohmann::json::object();
    if (token.kind == Token::other && token.shown != "null") value = false;  // neither is wanted
    nlohmann::json& to = found.values[member];
    if (depth == 1)
      to = std::move(value);
    else if (to.is_array())
      to.push_back(std::move(value));
  }
};

}  // namespace

Result<JsonMembers> read_json_members(std::string_view line,
                                      const std::vector<std::string>& wanted) {
  const MembersReader empty{&wanted};
  SS_ASSIGN(MembersReader reader, parse_line(line, empty));
  if (!reader.is_object) return Status(Code::bad_data, "it is no JSON object");
  if (nlohmann::json::accept(line)) return std::move(reader.found);
  SS_ASSIGN(const MembersReader other, parse_line(line, empty, other_half_pair));
  if (reader.found.values != other.found.values)
    return Status(Code::bad_data,
                  "a text of it has half a surrogate pair (\\ud800 to \\udfff without the other "
                  "half), which no UTF-8 can hold");
  return std::move(reader.found);
}

}  // namespace simplescale
