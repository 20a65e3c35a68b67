// The pre-tokenizer of tokenizer.json: cuts a text into the words that are encoded one by one. The
// steps are plain data; any thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/pattern.hpp"

namespace simplescale {

/// What becomes of the matches of a Split.
enum class SplitBehavior : unsigned char {
  isolated,              // words of their own
  removed,               // left out
  merged_with_previous,  // the end of the word before
  merged_with_next,      // the front of the word behind
  contiguous,            // neighbouring matches are one word
};
struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what is between matches counts as a match
};
/// Puts a space before a text that begins with none (ByteLevel's add_prefix_space).
struct PrefixSpaceStep {};
/// Replaces spaces by `mark`, puts it before a text that does not begin with it, cuts before it.
struct MetaspaceStep {
  enum Prepend : unsigned char { always, first, never };
  std::string mark;
  Prepend prepend = always;
  bool split = true;
};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

struct Words {
  struct Word {
    std::string_view text;
    bool at_start = false;  // of the whole text
  };
  std::vector<Word> words;          // the result
  std::vector<Word> next;           // memory
  std::deque<std::string> changed;  // texts that a step has changed
};

/// Cuts `text` into out.words, which refer to `text` and to `out`. text: valid UTF-8. at_start: it
/// is the front of a document.
void pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool at_start,
                  PatternScratch& scratch, Words& out);

}  // namespace simplescale
