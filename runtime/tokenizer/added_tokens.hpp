// Tokens that are taken out of a text before it is split into words, such as <|endoftext|>.
// Immutable after building; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace simplescale {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;                 // decode() leaves it out
  bool normalized = false;              // is looked for in the normalized text
  bool single_word = false;             // only between characters that are no letters and no digits
  bool lstrip = false, rstrip = false;  // takes the white space before or behind it, too
  bool operator==(const AddedToken&) const = default;
};

/// A part of a text: a token, or text (id < 0).
struct TextPart {
  std::string_view text;
  int32_t id = -1;
};

/// Finds tokens in texts: at the leftmost place the longest one. The time depends on the lengths of
/// the text and of the tokens found, not on how many tokens there are or what they share.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  /// contents: what to look for, one for each token, all different. They need about 40 times their
  /// bytes for a moment, and 13 times from then on.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);
  bool empty() const { return tokens_.empty(); }
  /// Cuts the text at its tokens and appends the parts in order. text: valid UTF-8.
  void split(std::string_view text, std::vector<TextPart>& out) const;

 private:
  struct Token {
    AddedToken token;
    size_t bytes = 0;  // of what is looked for
  };
  /// What has been read of a text, from its end: the front of a token, or "" (state 0).
  struct State {
    uint32_t children = 0;  // the first one; those of the next state end them
    uint32_t shorter = 0;   // the longest end of it that is a state, too
    int32_t token = -1;     // the longest one that begins here
  };
  struct Match {
    size_t begin = 0;
    const Token* token = nullptr;
  };
  void add_states(const std::vector<std::pair<std::string, int32_t>>& sorted);
  uint32_t child(uint32_t state, unsigned char byte) const;
  uint32_t step(uint32_t state, unsigned char byte) const;
  std::vector<Match> matches(std::string_view text) const;

  std::vector<Token> tokens_;
  std::vector<State> states_;            // in the order of their lengths; the last one only ends
  std::vector<unsigned char> bytes_;     // the first of each state; in order among children
  std::array<uint32_t, 256> of_byte_{};  // children of state 0; 0: none
};

}  // namespace simplescale
