// Ranges against sets of numbers.
#include "runtime/base/index_ranges.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

using namespace simplescale;

namespace {

using Numbers = std::set<uint64_t>;

Numbers numbers_of(const IndexRanges& ranges) {
  Numbers out;
  for (const IndexRange& range : ranges)
    for (uint64_t i = range.begin; i < range.end; ++i) out.insert(i);
  return out;
}

/// In order, not empty, with a number at least between two of them.
bool is_tidy(const IndexRanges& ranges) {
  for (size_t i = 0; i < ranges.size(); ++i)
    if (ranges[i].begin >= ranges[i].end || (i > 0 && ranges[i - 1].end >= ranges[i].begin))
      return false;
  return true;
}

}  // namespace

TEST_CASE("index ranges: union, part and continuation are those of the sets of numbers") {
  std::mt19937 random(1);
  const auto up_to = [&](uint64_t most) { return random() % (most + 1); };
  for (int round = 0; round < 3000; ++round) {
    std::vector<IndexRange> any;
    Numbers numbers;
    for (uint64_t i = up_to(5); i > 0; --i) {
      const uint64_t begin = up_to(30), end = begin + up_to(9);
      any.push_back({begin, end});
      for (uint64_t n = begin; n < end; ++n) numbers.insert(n);
    }
    const IndexRanges ranges = union_of(any);
    REQUIRE(is_tidy(ranges));
    REQUIRE(numbers_of(ranges) == numbers);
    const uint64_t begin = up_to(40), end = begin + up_to(20);
    Numbers part;
    for (const uint64_t n : numbers)
      if (n >= begin && n < end) part.insert(n - begin);
    REQUIRE(numbers_of(cut_ranges(ranges, begin, end)) == part);
    REQUIRE(is_tidy(cut_ranges(ranges, begin, end)));
    if (begin < end) REQUIRE(touches(ranges, begin, end) == !part.empty());
    // Cut anywhere and put together again.
    IndexRanges again = cut_ranges(ranges, 0, begin);
    append_ranges(again, cut_ranges(ranges, begin, 99), begin);
    REQUIRE(again == ranges);
  }
}
