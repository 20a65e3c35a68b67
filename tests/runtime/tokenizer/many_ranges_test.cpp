// Loss masks with more ranges than a text of any sense has, from a stranger.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/tokenizer/json_tokenizer.hpp"

using namespace simplescale;

TEST_SUITE("many ranges") {
  TEST_CASE("many ranges: a long text without blanks costs no time square in their number") {
    const auto made = JsonTokenizer::from_text(
        R"({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "xy"},
            "model": {"type": "BPE", "vocab": {"x": 0, "y": 1, "b": 2}, "merges": []}})");
    REQUIRE_MESSAGE(made.ok(), made.status().message());
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
