// Identifies a copy of a training state (a state version), and whose shard it is. Copies with equal fields have
// equal bits.
#pragma once

#include <cstddef>
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

/// Such a copy, of one of the `shards` shards into which a state was cut. step and generation as in
/// StateVersion. begun: the generation began with a copy in memory, whose bits older copies of the step
/// have, too; otherwise it computed the step, or read it from a checkpoint.
struct StateCopy {
  uint32_t shard = 0;
  uint64_t step = 0;
  uint64_t generation = 0;
  uint32_t shards = 1;
  bool begun = false;
  StateVersion version() const { return {step, generation}; }
  bool operator==(const StateCopy&) const = default;
};

/// Which shard of how many, both below 65,536, as one number.
constexpr uint32_t layout_of(size_t shards, size_t shard) {
  return static_cast<uint32_t>(shards << 16 | shard);
}
constexpr uint32_t shards_of(uint32_t layout) {
  return layout >> 16;
}
constexpr uint32_t shard_of(uint32_t layout) {
  return layout & 0xffff;
}

}  // namespace simplescale
