#include "runtime/tokenizer/added_tokens.hpp"

#include <algorithm>

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
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (contents[i].empty()) continue;
    first_.set(static_cast<unsigned char>(contents[i][0]));
    sorted_.push_back({contents[i], std::move(tokens[i])});
  }
  std::ranges::stable_sort(sorted_, {}, &Entry::content);
}

const AddedTokenFinder::Entry* AddedTokenFinder::longest_at(std::string_view text,
                                                            size_t at) const {
  // The entries that begin with the first `depth` bytes of the text are a range, and one of exactly
  // that length is its first.
  const Entry* longest = nullptr;
  auto begin = sorted_.begin(), end = sorted_.end();
  for (size_t depth = 0; at + depth < text.size(); ++depth) {
    const auto byte_of = [depth](const Entry& e) {
      return static_cast<int>(static_cast<unsigned char>(e.content[depth]));
    };
    const int wanted = static_cast<unsigned char>(text[at + depth]);
    const auto range = std::ranges::equal_range(begin, end, wanted, {}, byte_of);
    begin = range.begin(), end = range.end();
    if (begin == end) break;
    if (begin->content.size() == depth + 1) {
      longest = &*begin;
      while (begin != end && begin->content.size() == depth + 1) ++begin;
    }
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPart>& out) const {
  // Everything before has been appended. A token may begin before it: `tokenizers` looks for the next
  // one behind the token itself, not behind the white space that the token takes.
  size_t done = 0, spaces_end = 0;  // a match is followed by white space up to spaces_end
  const auto append_text = [&](size_t end) {
    if (end > done) out.push_back({text.substr(done, end - done), -1});
  };
  for (size_t at = 0; at < text.size() && !sorted_.empty();) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Entry* found = longest_at(text, at);
    if (!found) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    at = end;  // also a match that is discarded hides those inside it
    const AddedToken& token = found->token;
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
