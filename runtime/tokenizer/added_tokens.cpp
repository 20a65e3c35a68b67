#include "runtime/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <ranges>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace simplescale {

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() &&
         is_word_character(code_point_at(text, code_point_before(text, text.size())).value);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_character(code_point_at(text, 0).value);
}

size_t white_space_at_start(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_white_space(c.value)) break;
    at += c.bytes;
  }
  return at;
}

/// Where the white space at the end of the text begins.
size_t white_space_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t at = code_point_before(text, end);
    if (!is_white_space(code_point_at(text, at).value)) break;
    end = at;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& contents) {
  std::vector<std::pair<std::string, int32_t>> sorted;  // what is looked for, from its end
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (contents[i].empty()) continue;
    sorted.emplace_back(std::string(contents[i].rbegin(), contents[i].rend()),
                        static_cast<int32_t>(tokens_.size()));
    tokens_.push_back({std::move(tokens[i]), contents[i].size()});
  }
  std::ranges::sort(sorted);
  if (!tokens_.empty()) add_states(sorted);
}

/// The automaton of Aho and Corasick (1975), of the tokens read from their ends: so the state at the
/// front of a token says that it begins there.
void AddedTokenFinder::add_states(const std::vector<std::pair<std::string, int32_t>>& sorted) {
  struct Range {  // the tokens that end with a state
    size_t begin, end;
  };
  std::vector<Range> ranges = {{0, sorted.size()}};
  states_.resize(1);
  bytes_.resize(1);
  for (size_t state = 0, depth = 0, next_depth = 1; state < states_.size(); ++state) {
    if (state == next_depth) {
      ++depth;
      next_depth = states_.size();
    }
    auto [at, end] = ranges[state];
    states_[state].token = sorted[at].first.size() == depth ? sorted[at++].second
                                                            : states_[states_[state].shorter].token;
    states_[state].children = static_cast<uint32_t>(states_.size());
    while (at < end) {
      const size_t begin = at;
      const auto byte = static_cast<unsigned char>(sorted[at].first[depth]);
      while (at < end && static_cast<unsigned char>(sorted[at].first[depth]) == byte) ++at;
      State made;
      if (state > 0) made.shorter = step(states_[state].shorter, byte);
      if (state == 0) of_byte_[byte] = static_cast<uint32_t>(states_.size());
      states_.push_back(made);
      bytes_.push_back(byte);
      ranges.push_back({begin, at});
    }
  }
  states_.push_back({.children = static_cast<uint32_t>(states_.size())});
}

/// 0: there is none.
uint32_t AddedTokenFinder::child(uint32_t state, unsigned char byte) const {
  if (state == 0) return of_byte_[byte];
  const auto begin = bytes_.begin() + states_[state].children;
  const auto end = bytes_.begin() + states_[state + 1].children;
  const auto found = std::lower_bound(begin, end, byte);
  return found != end && *found == byte ? static_cast<uint32_t>(found - bytes_.begin()) : 0;
}

/// The state behind `state`, with the byte before it.
uint32_t AddedTokenFinder::step(uint32_t state, unsigned char byte) const {
  while (true) {
    const uint32_t next = child(state, byte);
    if (next > 0 || state == 0) return next;
    state = states_[state].shorter;
  }
}

/// The longest token at each place where one begins, from the end of the text.
std::vector<AddedTokenFinder::Match> AddedTokenFinder::matches(std::string_view text) const {
  std::vector<Match> found;
  uint32_t state = 0;
  for (size_t at = text.size(); at-- > 0;) {
    state = step(state, static_cast<unsigned char>(text[at]));
    if (const int32_t token = states_[state].token; token >= 0)
      found.push_back({at, &tokens_[static_cast<size_t>(token)]});
  }
  return found;
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPart>& out) const {
  // Everything before has been appended. A token may begin before it: `tokenizers` looks for the next
  // one behind the token itself, not behind the white space that the token takes.
  size_t done = 0, spaces_end = 0;  // a match is followed by white space up to spaces_end
  const auto append_text = [&](size_t end) {
    if (end > done) out.push_back({text.substr(done, end - done), -1});
  };
  size_t at = 0;
  const std::vector<Match> all = tokens_.empty() ? std::vector<Match>() : matches(text);
  for (const Match& match : std::views::reverse(all)) {
    if (match.begin < at) continue;
    size_t begin = match.begin, end = begin + match.token->bytes;
    at = end;  // also a match that is discarded hides those inside it
    const AddedToken& token = match.token->token;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    // No white space is looked at twice: a text may be nothing else.
    if (token.lstrip) begin = std::max(begin, done);
    if (token.lstrip) begin = done + white_space_at_end(text.substr(done, begin - done));
    if (token.rstrip && end >= spaces_end)
      spaces_end = end + white_space_at_start(text.substr(end));
    if (token.rstrip) end = spaces_end;
    append_text(begin);
    if (begin < end) out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  append_text(text.size());
}

}  // namespace simplescale
