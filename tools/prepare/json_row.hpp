// A row of a .jsonl file: its text, and which part of it does not count in the loss; or the members
// that a task has. Values that are not wanted are forgotten as they are read, so that a row takes a
// few times the memory of its line, whatever it holds. Pure functions, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/index_ranges.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

struct JsonRow {
  std::string text;    // valid UTF-8
  IndexRanges masked;  // bytes of it
};

/// Reads a line. text_key, mask_key: as of CorpusOptions. bad_data says what is wrong: it is no JSON,
/// has no text, or a range that is none or is beyond the text.
Result<JsonRow> read_json_row(std::string_view line, const std::string& text_key,
                              const std::string& mask_key);

/// The masked ranges of a text, in its bytes, from a list of ranges in JSON. Errors as above.
Result<IndexRanges> read_json_mask(std::string_view json, const std::string& mask_key,
                                   std::string_view text);

struct JsonMembers {
  nlohmann::json values = nlohmann::json::object();  // texts, whole numbers, lists of these
  std::set<std::string> others;                      // the beginnings of other members' names
};

/// Reads members of the object in a line, as read_json_row() reads it. Other numbers than whole ones,
/// and true, become false; what is nested in lists and objects of lists is left out. bad_data says
/// what is wrong.
Result<JsonMembers> read_json_members(std::string_view line,
                                      const std::vector<std::string>& wanted);

}  // namespace simplescale
