// Identifies a copy of a shard's training state.
#pragma once

#include <cstdint>

namespace simplescale {

/// A copy of the state after `step`. generation: the one that computed the step, or the last one
/// that began with it. It tells copies of the same step apart: a step that was undone is computed
/// again in a later generation, perhaps with other bits.
struct HeldStep {
  uint64_t step = 0;
  uint64_t generation = 0;
  bool operator==(const HeldStep&) const = default;
};

}  // namespace simplescale
