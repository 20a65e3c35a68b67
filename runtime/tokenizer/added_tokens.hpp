// Tokens that are taken out of a text before it is split into words, such as <|endoftext|>.
// Immutable after building; any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simplescale {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;                 // decode() leaves it out
  bool normalized = false;              // is looked for in the normalized text
  bool single_word = false;             // only between characters that are no letters and no digits
  bool lstrip = false, rstrip = false;  // takes the white space before or behind it, too
};

/// A part of a text: a token, or text (id < 0).
struct TextPart {
  std::string_view text;
  int32_t id = -1;
};

/// Finds tokens in texts: at the leftmost place the longest one.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  /// contents: what to look for, one for each token.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);
  bool empty() const { return sorted_.empty(); }
  /// Cuts the text at its tokens and appends the parts in order. text: valid UTF-8.
  void split(std::string_view text, std::vector<TextPart>& out) const;

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };
  const Entry* longest_at(std::string_view text, size_t at) const;
  std::vector<Entry> sorted_;  // by content
  std::bitset<256> first_;     // the bytes that contents begin with
};

}  // namespace simplescale
