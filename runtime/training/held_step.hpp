// What a copy of training state is a copy of. Copies with equal fields have equal bits.
#pragma once

#include <cstdint>

namespace simplescale {

/// A shard's state after `step`, as it was made in `generation`, or as a generation began with it.
/// A step that is undone is made again in a later generation, perhaps with other bits.
struct HeldStep {
  uint64_t step = 0;
  uint64_t generation = 0;
  bool operator==(const HeldStep&) const = default;
};

/// A copy of a shard's state in the peer store of a node: of another node's trainer.
struct PeerCopy {
  uint32_t shard = 0;
  uint64_t step = 0;  // step and generation as in HeldStep
  uint64_t generation = 0;
  bool operator==(const PeerCopy&) const = default;
};

}  // namespace simplescale
