// Identifies a copy of a shard's training state (a state version). Copies with equal fields have
// equal bits.
#pragma once

#include <cstdint>

namespace simplescale {

/// A copy of the state after `step`. generation: the one that computed the step, or the last one
/// that began with it. It distinguishes copies of the same step: a step that was rolled back is
/// computed again in a later generation, perhaps with other bits.
struct StateVersion {
  uint64_t step = 0;
  uint64_t generation = 0;
  bool operator==(const StateVersion&) const = default;
};

/// A copy of a shard's state in the peer store of a node. The shard belongs to another node's
/// trainer.
struct PeerCopy {
  uint32_t shard = 0;
  uint64_t step = 0;  // step and generation as in StateVersion
  uint64_t generation = 0;
  bool operator==(const PeerCopy&) const = default;
};

}  // namespace simplescale
