// A copy of a shard's training state, by what tells it from all others.
#pragma once

#include <cstdint>

namespace simplescale {

/// The state of a step. generation: in which it was made, or last begun from: a step that is undone
/// is made again, in a later generation and perhaps with other bits.
struct HeldStep {
  uint64_t step = 0;
  uint64_t generation = 0;
  bool operator==(const HeldStep&) const = default;
};

}  // namespace simplescale
