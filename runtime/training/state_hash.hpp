// The 128-bit hash of a shard's training state. Replicas compare it after every step, and every
// stored or transferred copy has it. There is one definition, so that hashes from different places
// can be compared. Pure functions; they run on the caller's thread and on the threads of
// `parallel`.
#pragma once

#include <span>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/parallel.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Floats of a hashed block: 256 KiB, which fits into a core's cache.
constexpr size_t kStateHashBlock = size_t{1} << 16;

/// Appends the hash128 of each block of kStateHashBlock floats; the last block may be shorter.
void hash_blocks(std::span<const float> values, std::vector<Hash128>& blocks);

/// The hashes of the blocks of all parts, in the order of kStateKinds.
std::vector<Hash128> block_hashes(const TrainState::Side& side, const Parallel& parallel = {});
/// The hash128 of block_hashes().
Hash128 hash_of_blocks(std::span<const Hash128> blocks);
Hash128 state_hash(const TrainState::Side& side, const Parallel& parallel = {});

/// STATE-2: compares a side with its hash at commit; a side without a hash passes. mismatch: they
/// differ. The side must be pinned, or have no writer.
Status check_side(TrainState& state, int side, const Parallel& parallel = {});
/// The same for a copy outside a TrainState; `hash` came with the copy. step: for the message.
Status check_copy(const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  const Parallel& parallel = {});
/// The same; afterwards `blocks` are the block_hashes() of what was committed. If they already are,
/// because a copy with this hash was compared before, nothing is read.
Status check_copy(const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  std::vector<Hash128>& blocks, const Parallel& parallel = {});

}  // namespace simplescale
