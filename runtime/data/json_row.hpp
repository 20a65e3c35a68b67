// A row of a .jsonl file: its text, and which part of it does not count in the loss. Pure functions,
// any thread.
#pragma once

#include <string>
#include <string_view>

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

}  // namespace simplescale
