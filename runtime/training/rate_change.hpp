// A change of the learning rate during the run.
#pragma once

#include <cstdint>

namespace simplescale {

/// From `step` on (counted from 1), the schedule has this peak. A list of changes is in order of
/// steps. Every trainer gets the same list when it joins a generation, so a step that is made again
/// has the same learning rate.
struct RateChange {
  uint64_t step = 0;
  double peak = 0;
  bool operator==(const RateChange&) const = default;
};

}  // namespace simplescale
