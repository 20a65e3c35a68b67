// The normalizer of tokenizer.json: what happens to a text before it is split into words. The steps
// are plain data; any thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/pattern.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace simplescale {

/// U+2581, which stands for a space in tokens.
inline constexpr std::string_view space_mark = "\xE2\x96\x81";

struct PrependText {  // before every text that is not empty
  std::string text;
};
struct ReplaceText {
  Pattern pattern;
  std::string by;
};
struct Lowercase {};
struct StripMarks {};
using NormalizerStep = std::variant<NormalForm, PrependText, ReplaceText, Lowercase, StripMarks>;

/// text: valid UTF-8. continues: the text continues a document, so nothing is put before it.
std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                      bool continues, PatternScratch& scratch);

/// The text with `by` in place of each match.
std::string replace_all(std::string_view text, const Pattern& pattern, const std::string& by,
                        PatternScratch& scratch);

}  // namespace simplescale
