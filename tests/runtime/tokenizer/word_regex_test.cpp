// What a regular expression of a hostile tokenizer.json can cost.
#include "runtime/tokenizer/word_regex.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

/// How many matches a text has, and where the last one ends.
std::pair<size_t, size_t> matches(const WordRegex& pattern, const std::string& text) {
  PatternScratch scratch;
  size_t count = 0, done = 0;
  for (WordRegex::Match match; pattern.find(text, done, scratch, match); done = match.end) ++count;
  return {count, done};
}

}  // namespace

TEST_CASE(
    "word regex: a pattern may need many steps for a few matches of a long text, not for each") {
  auto compiled = WordRegex::compile("(?:a|a)+b|.");  // doubles its steps for each further a
  REQUIRE(compiled.ok());
  const WordRegex pattern = compiled.take();
  const std::string cheap(10, 'a'), costly(18, 'a');
  CHECK(matches(pattern, cheap) == std::pair<size_t, size_t>(10, 10));
  CHECK(matches(pattern, costly).first == 0);  // short texts get no such match
  std::string text;
  while (text.size() < 4 << 10) text += cheap + "b";
  const size_t whole = matches(pattern, text).first;
  CHECK(whole == text.size() / 11);
  // Two characters of this word need more than the usual steps, and four may.
  CHECK(matches(pattern, costly + "," + text).second > text.size());
  std::string hostile;
  while (hostile.size() < 4 << 10) hostile += costly + ",";
  CHECK(matches(pattern, hostile).second < 5 * (costly.size() + 1));
}
