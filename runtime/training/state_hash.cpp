#include "runtime/training/state_hash.hpp"

#include <algorithm>

#include "runtime/base/log.hpp"

namespace simplescale {

void hash_blocks(std::span<const float> values, std::vector<Hash128>& blocks) {
  for (size_t first = 0; first < values.size(); first += kStateHashBlock)
    blocks.push_back(hash128(values.data() + first,
                             std::min(kStateHashBlock, values.size() - first) * sizeof(float)));
}

std::vector<Hash128> block_hashes(const TrainState::Side& side, const Parallel& parallel) {
  const auto parts = side.parts();
  std::vector<std::span<const float>> blocks;
  for (const std::span<float> part : parts)
    for (size_t first = 0; first < part.size(); first += kStateHashBlock)
      blocks.push_back(part.subspan(first, std::min(kStateHashBlock, part.size() - first)));
  std::vector<Hash128> hashes(blocks.size());
  run_tasks(parallel, hashes.size(), [&](size_t task) {
    hashes[task] = hash128(blocks[task].data(), blocks[task].size_bytes());
  });
  return hashes;
}

Hash128 hash_of_blocks(std::span<const Hash128> blocks) {
  return hash128(blocks.data(), blocks.size_bytes());
}

Hash128 state_hash(const TrainState::Side& side, const Parallel& parallel) {
  return hash_of_blocks(block_hashes(side, parallel));
}

Status check_copy(const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  const Parallel& parallel) {
  if (hash == Hash128{}) return {};
  std::vector<Hash128> blocks;
  return check_copy(copy, step, hash, blocks, parallel);
}

Status check_copy(const TrainState::Side& copy, uint64_t step, const Hash128& hash,
                  std::vector<Hash128>& blocks, const Parallel& parallel) {
  if (!blocks.empty() && hash_of_blocks(blocks) == hash) return {};
  blocks = block_hashes(copy, parallel);
  const Hash128 now = hash_of_blocks(blocks);
  if (hash == Hash128{} || now == hash) return {};
  const std::string copy_of = "the copy of step " + std::to_string(step);
  log::warn("{}: committed with the hash {}, now {}", copy_of, hash.hex(), now.hex());
  return {Code::mismatch, copy_of + " has changed in memory since it was committed"};
}

Status check_side(TrainState& state, int side, const Parallel& parallel) {
  return check_copy(state.side(side), state.step_of(side), state.hash(side), parallel);
}

}  // namespace simplescale
