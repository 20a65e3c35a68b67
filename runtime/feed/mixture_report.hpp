// How often each source of a mixture is read: told before the run begins. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/feed/run_data.hpp"

namespace simplescale {

/// More epochs of a source than this are warned of: up to four, repeated data is about as good as
/// new data (Muennighoff et al., arXiv 2305.16264).
inline constexpr double kEpochsWithoutWarning = 4;

struct SourceUse {
  std::string name;
  uint64_t tokens = 0;   // to train on
  uint64_t epoch = 0;    // samples
  uint64_t samples = 0;  // that the whole run trains
  double epochs() const { return static_cast<double>(samples) / static_cast<double>(epoch); }
};
/// Of each source of data.blend; empty without it.
std::vector<SourceUse> source_uses(const Plan& plan, const RunData& data);

/// A table: tokens, samples, share and epochs of each source. Lines begin with two spaces.
std::string mixture_table(const std::vector<SourceUse>& uses);
/// A warning for each source that is repeated often, and for each that the run never reads.
std::vector<std::string> mixture_warnings(const std::vector<SourceUse>& uses);

/// A line for each source that data.pack has packed: samples, and the share of padding. Lines begin
/// with two spaces; "" without data.pack.
std::string packing_table(const RunData& data);
/// The share of the inputs that the run trains that is padding, 0 to 1: of each source as in a whole
/// epoch.
double padding_share(const Plan& plan, const RunData& data);

}  // namespace simplescale
