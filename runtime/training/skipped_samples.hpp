// The samples that a run leaves out (data.skip_samples). Pure functions, any thread.
//
// Samples are numbered from 0 in the order of training (sample_order.hpp). A run trains those that
// are not skipped, in this order. The *place* of a sample is its number minus the number of skipped
// samples before it. Steps have fixed places, so the samples of a step depend only on this list,
// never on the layout.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

class SkippedSamples {
 public:
  static constexpr size_t ranges_max = 10'000;
  static constexpr uint64_t last_max = uint64_t{1} << 62;

  SkippedSamples() = default;
  /// text: "84-87,92": ranges with their first and last sample, or single samples, in any order;
  /// they may overlap. "": none. bad_config: the text has another form, a number is above last_max,
  /// or there are more than ranges_max ranges.
  static Result<SkippedSamples> parse(const std::string& text);
  /// The same samples in order, without overlaps; parse() accepts this text.
  std::string text() const;
  bool empty() const { return ranges_.empty(); }
  /// The samples that are in either list.
  SkippedSamples with(const SkippedSamples& other) const;

  /// The sample at a place: number `place` (from 0) of the samples that are not skipped.
  uint64_t sample_at(uint64_t place) const;
  /// The samples at `count` consecutive places as runs: first, count, first, count, ...
  std::vector<uint64_t> samples_at(uint64_t place, uint64_t count) const;
  /// The number of skipped samples below `sample`.
  uint64_t before(uint64_t sample) const;
  /// The number of skipped samples in [first, first + count).
  uint64_t in(uint64_t first, uint64_t count) const;
  bool operator==(const SkippedSamples&) const = default;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // first, end; in order, with gaps between
};

/// Runs of samples (first, count, first, count, ...; in any order) as --skip-samples takes them. A
/// list of more than `most` ranges becomes the one range that covers it.
std::string samples_text(const std::vector<uint64_t>& runs, size_t most = 16);

}  // namespace simplescale
