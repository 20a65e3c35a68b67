// Sets of whole numbers as ranges: of the characters of a text, its bytes, or tokens. Pure
// functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace simplescale {

/// The numbers [begin, end).
struct IndexRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const IndexRange&) const = default;
};

/// In order; each ends before the next one begins; none is empty.
using IndexRanges = std::vector<IndexRange>;

/// Adds a range that begins at or behind the beginning of the last one.
inline void append_range(IndexRanges& ranges, IndexRange range) {
  if (range.begin >= range.end) return;
  if (!ranges.empty() && range.begin <= ranges.back().end)
    ranges.back().end = std::max(ranges.back().end, range.end);
  else
    ranges.push_back(range);
}

/// The union of any ranges.
inline IndexRanges union_of(std::vector<IndexRange> any) {
  std::ranges::sort(any, {}, &IndexRange::begin);
  IndexRanges out;
  for (const IndexRange& range : any) append_range(out, range);
  return out;
}

/// What the ranges have in [begin, end), counted from `begin`.
inline IndexRanges cut_ranges(const IndexRanges& ranges, uint64_t begin, uint64_t end) {
  IndexRanges out;
  for (auto at = std::ranges::upper_bound(ranges, begin, {}, &IndexRange::end);
       begin < end && at != ranges.end() && at->begin < end; ++at)
    out.push_back({std::max(at->begin, begin) - begin, std::min(at->end, end) - begin});
  return out;
}

/// Appends `more`, which is counted from `from`. Requires that no range ends behind `from`.
inline void append_ranges(IndexRanges& ranges, const IndexRanges& more, uint64_t from) {
  for (const IndexRange& range : more) append_range(ranges, {from + range.begin, from + range.end});
}

/// True if one of the ranges has a number of [begin, end), of which there is one at least.
inline bool touches(const IndexRanges& ranges, uint64_t begin, uint64_t end) {
  const auto at = std::ranges::upper_bound(ranges, begin, {}, &IndexRange::end);
  return at != ranges.end() && at->begin < end;
}

}  // namespace simplescale
