// What a step of tokenizer.json looks for: a text, or a regular expression. Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/tokenizer/word_regex.hpp"

namespace simplescale {

struct Pattern {
  std::string text;                // not empty unless there is a regex
  std::optional<WordRegex> regex;  // has precedence

  bool find(std::string_view in, size_t from, PatternScratch& scratch,
            WordRegex::Match& match) const {
    if (regex) return regex->find(in, from, scratch, match);
    const size_t at = in.find(text, from);
    match = {at, at + text.size()};
    return at != in.npos;
  }
};

}  // namespace simplescale
