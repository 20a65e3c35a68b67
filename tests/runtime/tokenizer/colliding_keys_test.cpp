// A tokenizer from a stranger, whose pieces have hashes that the stranger chose.
// Loss masks with more ranges than a text of any sense has, from a stranger.
// What a regular expression of a hostile tokenizer.json can cost.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/json_tokenizer.hpp"
#include "runtime/tokenizer/sentencepiece_model.hpp"
#include "runtime/tokenizer/word_regex.hpp"
#include "tests/must.hpp"
#include "tests/runtime/tokenizer/colliding_keys.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"

using namespace simplescale;

TEST_SUITE("colliding keys") {
  TEST_CASE("colliding keys: words of one hash have different ones in a vocabulary") {
    const auto texts = test::texts_of_one_hash(10);
    std::set<size_t> known, ours;
    for (const std::string& text : texts) {
      known.insert(std::hash<std::string>()(text));
      ours.insert(Vocabulary::hasher()(text));
    }
    REQUIRE(known.size() == 1);
    CHECK(ours.size() == texts.size());
    CHECK(Vocabulary::hasher()("a") == Vocabulary::hasher()("a"));
  }

  TEST_CASE("colliding keys: pairs of one hash have different ones in the table of merges") {
    std::set<uint64_t> low;
    for (const uint64_t number : test::numbers_of_one_product(4'096))
      low.insert(SeededHash()(number) & 4'095);
    CHECK(low.size() > 2'000);  // 2589 of random ones
    FlatMap map(4'096);
    for (const uint64_t number : test::numbers_of_one_product(4'096)) map.set(number, number + 1);
    for (const uint64_t number : test::numbers_of_one_product(4'096))
      CHECK(map.get(number) == number + 1);
  }

  TEST_CASE("colliding keys: a SentencePiece model whose pieces have one hash is refused") {
    const auto model_of = [](int bits, int type) {
      std::string model = test::small_model(test::bpe_model);
      for (const std::string& text : test::texts_of_one_hash(bits))
        if (!text.empty()) model += test::piece(text, type);
      return check_sentencepiece_model(model);
    };
    CHECK(model_of(5, test::normal_piece).ok());
    const Status twice = check_sentencepiece_model(test::small_model(test::bpe_model) +
                                                   test::piece("<unk>", test::normal_piece));
    CHECK(twice.message().find("occurs twice") != std::string::npos);
    for (const int type : {test::normal_piece, test::user_piece}) {
      CHECK(says(model_of(7, type), Code::bad_data, "more than 64 pieces have alike hashes"));
    }
  }
}

TEST_SUITE("many ranges") {
  TEST_CASE("many ranges: a long text without blanks costs no time square in their number") {
    const auto made = must(JsonTokenizer::from_text(
        R"({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "xy"},
            "model": {"type": "BPE", "vocab": {"x": 0, "y": 1, "b": 2}, "merges": []}})"));
    constexpr uint64_t letters = 1 << 16;
    std::string text;
    while (text.size() < letters) text += "ba";
    const auto masked_of = [&](uint64_t ranges) {
      IndexRanges all;
      for (uint64_t i = 0; i < ranges; ++i) {
        const uint64_t at = i * (letters / 2 / ranges) * 2 + 1;
        all.push_back({at, at + 1});
      }
      std::vector<bool> masked;
      CHECK(made->encode_masked(text, false, all, masked).size() == letters / 2 * 3);
      return masked;
    };
    const std::vector<bool> few = masked_of(128);  // each one is where it is
    for (size_t i = 0; i < few.size(); ++i)
      REQUIRE_MESSAGE(
          few[i] == (i % (letters / 2 / 128 * 3) == 1 || i % (letters / 2 / 128 * 3) == 2), i);
    const std::vector<bool> many = masked_of(letters / 2);  // some are joined, and none is left out
    for (size_t i = 0; i < many.size(); ++i)
      if (i % 3 != 0) REQUIRE_MESSAGE(many[i], i);
    CHECK_FALSE(many[0]);
    CHECK(std::ranges::count(many, true) > static_cast<std::ptrdiff_t>(letters));  // joined
  }
}

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
  auto rare = must(WordRegex::compile("(?:a|a)+b"));
  CHECK(matches(*rare, hostile, &failed).first == 0);
  CHECK(failed);
}

TEST_CASE("word regex: a match is found over the ends of the parts that PCRE2 gets of a text") {
  const auto last = [](const char* pattern, const std::string& text) {
    const auto compiled = must(WordRegex::compile(pattern));
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
