// The 128-bit hash of a shard's training state: what replicas compare every step and what goes
// along with every stored or transferred copy. One definition, so that hashes made in different
// places can be compared. Pure functions; they run on the caller's thread, and on those that
// `parallel` lends.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Elements of a hashed block: 256 KiB, which stays in a core's cache.
constexpr size_t kStateHashBlock = size_t{1} << 16;

/// Appends the hash128 of each block of kStateHashBlock elements; the last may be shorter.
void hash_blocks(std::span<const float> values, std::vector<Hash128>& blocks);

/// Calls body(task) once for each task in [0, tasks), in any order and on any thread; returns when
/// all are done.
using Parallel = std::function<void(size_t tasks, const std::function<void(size_t)>& body)>;

/// hash128 over the hashes of the blocks of params, exp_avg and exp_avg_sq, in this order.
Hash128 state_hash(const TrainState::Side& side, const Parallel& parallel = {});

/// STATE-2: a side that is pinned, or that nobody writes, is what was committed. mismatch: it is not. A
/// side whose hash is not known passes.
Status check_side(TrainState& state, int side, const Parallel& parallel = {});
/// The same for a copy of the state of `step` that lies elsewhere; `hash` came with it.
Status check_copy(const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  const Parallel& parallel = {});

}  // namespace simplescale
