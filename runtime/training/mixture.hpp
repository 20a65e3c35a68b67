// Which source each sample of a mixture comes from (data.blend, data.stage). Pure functions, any
// thread.
//
//   MIX-1  After any number of samples of a stage, the count of each source differs from its exact
//          share by less than one sample.
//   MIX-2  The samples that a source gives have the ranks 0, 1, 2, ... in it, over all stages: no
//          sample is trained twice before every sample of its source was trained.
//
// A stage has whole-number weights without a common divisor, and W, their sum. Its order repeats
// after W samples. Within them, the k-th sample (from 0) of a source of weight w may have the
// places floor(k W / w) to ceil((k + 1) W / w) - 1: any order that keeps all samples within these
// limits keeps MIX-1. Scheduling the earliest deadline first finds such an order for unit jobs on
// one machine if one exists. Here one exists, because the exact shares fill every place with
// exactly one sample (Baruah et al., Proportionate progress, Algorithmica 15, 1996).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale {

/// The sources of a run and their weights. Samples are numbered as in skipped_samples.hpp.
struct Mixture {
  static constexpr size_t sources_max = 255;
  static constexpr uint64_t period_max = 1'000'000;   // W of a stage
  static constexpr uint64_t periods_max = 4'000'000;  // of all stages together; 5 bytes each

  struct Stage {
    uint64_t first = 0;             // the first sample of the stage
    std::vector<uint64_t> weights;  // of each source, without a common divisor; 0: not used
    uint64_t period() const;
    bool operator==(const Stage&) const = default;
  };
  std::vector<std::string> names;  // of the sources; empty: one source, which has no name
  std::vector<Stage> stages;       // in order; the first one begins with sample 0
  bool empty() const { return names.empty(); }
  bool operator==(const Mixture&) const = default;
};

/// Converts decimals, as they are written (0.1 is a tenth), to whole numbers in the same ratio and
/// without a common divisor. 0 stays 0. bad_config: a weight is negative or not finite, all are 0,
/// or the sum of the whole numbers is above Mixture::period_max.
Result<std::vector<uint64_t>> whole_weights(std::span<const double> weights);

class MixtureSchedule {
 public:
  /// Requires a mixture that is not empty.
  explicit MixtureSchedule(Mixture mixture);

  struct Draw {
    size_t source = 0;
    uint64_t rank = 0;  // samples that the source has given before this one
    bool operator==(const Draw&) const = default;
  };
  Draw at(uint64_t sample) const;
  /// The number of samples of the source among the first `samples` samples.
  uint64_t count(size_t source, uint64_t samples) const;
  /// For each source, how many of its samples are trained at `places` consecutive places from
  /// `first` on. Skipped samples have no place.
  std::vector<uint64_t> trained(uint64_t first, uint64_t places,
                                const SkippedSamples& skipped) const;
  const Mixture& mixture() const { return mixture_; }

 private:
  struct Stage {
    uint64_t first = 0, period = 1;
    std::vector<uint8_t> source;                // at each place of the period
    std::vector<std::vector<uint32_t>> places;  // of each source in the period, ascending
    std::vector<uint64_t> before;               // samples of each source in earlier stages
    uint64_t count(size_t source, uint64_t samples) const;  // of the stage's first `samples`
  };
  const Stage& stage_of(uint64_t sample) const;
  Mixture mixture_;
  std::vector<Stage> stages_;
};

/// "" if `now` gives the first `samples` samples exactly as `was` did. Otherwise the difference, as
/// a phrase for users: "from sample 0 on the weights were web 7, code 3 and are now web 1, code 1".
std::string mixture_change(const Mixture& was, const Mixture& now, uint64_t samples);

}  // namespace simplescale
