#include "runtime/training/skipped_samples.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

using Range = std::pair<uint64_t, uint64_t>;  // first, end

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > SkippedSamples::last_max)
    return std::nullopt;
  return number;
}

std::string without_spaces(std::string_view text) {
  return trimmed(text, " ");
}

std::optional<Range> range_of(std::string_view text) {
  const size_t dash = text.find('-');
  const auto first = number_of(without_spaces(text.substr(0, dash)));
  const auto last =
      dash == std::string_view::npos ? first : number_of(without_spaces(text.substr(dash + 1)));
  if (!first || !last || *last < *first) return std::nullopt;
  return Range(*first, *last + 1);
}

void merge(std::vector<Range>& ranges) {
  std::ranges::sort(ranges);
  std::vector<Range> merged;
  for (const auto& [first, end] : ranges) {
    if (merged.empty() || first > merged.back().second)
      merged.emplace_back(first, end);
    else
      merged.back().second = std::max(merged.back().second, end);
  }
  ranges = std::move(merged);
}

std::string text_of(const std::vector<Range>& ranges) {
  std::string text;
  for (const auto& [first, end] : ranges) {
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (end > first + 1) text += "-" + std::to_string(end - 1);
  }
  return text;
}

}  // namespace

Result<SkippedSamples> SkippedSamples::parse(const std::string& text) {
  SkippedSamples skipped;
  if (without_spaces(text).empty()) return skipped;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const auto range = range_of(std::string_view(text).substr(at, comma - at));
    if (!range || skipped.ranges_.size() == ranges_max)
      return Status(Code::bad_config,
                    "must be a list of samples and ranges such as \"84-87,92\", of at most " +
                        std::to_string(ranges_max) + " entries");
    skipped.ranges_.push_back(*range);
    at = comma + 1;
  }
  merge(skipped.ranges_);
  return skipped;
}

std::string SkippedSamples::text() const {
  return text_of(ranges_);
}

SkippedSamples SkippedSamples::with(const SkippedSamples& other) const {
  SkippedSamples both = *this;
  both.ranges_.insert(both.ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  merge(both.ranges_);
  return both;
}

uint64_t SkippedSamples::sample_at(uint64_t place) const {
  uint64_t sample = place;
  for (const auto& [first, end] : ranges_) {
    if (first > sample) break;
    sample += end - first;
  }
  return sample;
}

std::vector<uint64_t> SkippedSamples::samples_at(uint64_t place, uint64_t count) const {
  std::vector<uint64_t> runs;
  for (uint64_t done = 0; done < count;) {
    const uint64_t first = sample_at(place + done);
    const auto next = std::ranges::upper_bound(ranges_, first, {}, &Range::first);
    const uint64_t left = count - done;
    const uint64_t length = next == ranges_.end() ? left : std::min(left, next->first - first);
    runs.push_back(first);
    runs.push_back(length);
    done += length;
  }
  return runs;
}

uint64_t SkippedSamples::before(uint64_t sample) const {
  uint64_t count = 0;
  for (const auto& [first, end] : ranges_) {
    if (first >= sample) break;
    count += std::min(end, sample) - first;
  }
  return count;
}

uint64_t SkippedSamples::in(uint64_t first, uint64_t count) const {
  const uint64_t end = count > UINT64_MAX - first ? UINT64_MAX : first + count;
  return before(end) - before(first);
}

std::string samples_text(const std::vector<uint64_t>& runs, size_t most) {
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < runs.size(); i += 2)
    if (runs[i + 1] > 0) ranges.emplace_back(runs[i], runs[i] + runs[i + 1]);
  merge(ranges);
  if (ranges.size() > most) ranges = {{ranges.front().first, ranges.back().second}};
  return text_of(ranges);
}

}  // namespace simplescale
