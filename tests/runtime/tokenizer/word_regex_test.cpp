// What a regular expression of a hostile tokenizer.json can cost.
#include "runtime/tokenizer/word_regex.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

/// How many matches a text has, and where the last one ends.
std::pair<size_t, size_t> matches(const WordRegex& pattern, const std::string& text,
                                  bool* failed = nullptr) {
  PatternScratch scratch;
  scratch.begin(text.size());
  size_t count = 0, done = 0;
  for (WordRegex::Match match; pattern.find(text, done, scratch, match); done = match.end) ++count;
  if (failed) *failed = !scratch.status().ok();
  return {count, done};
}

}  // namespace

TEST_CASE("word regex: a pattern may need many steps for a few matches of a text, not for each") {
  auto compiled = WordRegex::compile("(?:a|a)+b|.");  // doubles its steps for each further a
  REQUIRE(compiled.ok());
  const WordRegex pattern = compiled.take();
  const std::string cheap(8, 'a'), costly(14, 'a');
  bool failed = true;
  CHECK(matches(pattern, cheap, &failed) == std::pair<size_t, size_t>(8, 8));
  CHECK_FALSE(failed);
  std::string text;
  while (text.size() < 4 << 10) text += cheap + "b";
  CHECK(matches(pattern, text + costly, &failed).second == text.size() + costly.size());
  CHECK_FALSE(failed);
  std::string hostile;
  while (hostile.size() < 64 << 10) hostile += costly + ",";
  CHECK(matches(pattern, hostile, &failed).second < hostile.size());
  CHECK(failed);
  // Where a match begins is looked for with the same bound.
  auto rare = WordRegex::compile("(?:a|a)+b");
  REQUIRE(rare.ok());
  CHECK(matches(*rare, hostile, &failed).first == 0);
  CHECK(failed);
}

TEST_CASE("word regex: a match is found over the ends of the parts that PCRE2 gets of a text") {
  const auto last = [](const char* pattern, const std::string& text) {
    const auto compiled = WordRegex::compile(pattern);
    REQUIRE(compiled.ok());
    bool failed = true;
    const size_t end = matches(*compiled, text, &failed).second;
    CHECK_FALSE(failed);
    return end;
  };
  for (const size_t length : {size_t{255}, size_t{256}, size_t{257}, size_t{511}, size_t{5000}}) {
    CAPTURE(length);
    const std::string spaces(length, ' '), letters(length, 'x');
    CHECK(last("\\s+(?!\\S)", spaces + "x") == length - 1);
    CHECK(last("x+y", spaces + letters + "y") == 2 * length + 1);
    CHECK(last("xy", spaces + letters + "y") == 2 * length + 1);
    CHECK(last("(x+)(y|z)", spaces + letters + "y") == 2 * length + 1);  // groups that are kept
    CHECK(last("(?:x|y)+(?=z)", letters + letters + "z") == 2 * length);
    std::string wide;  // a part may end within a character
    for (size_t i = 0; i < length; ++i) wide += "\xE4\xB8\xAD";
    CHECK(last("\\p{L}+", "x" + wide) == 1 + wide.size());
    CHECK(last("\\p{L}", wide + " ") == wide.size());
  }
}
