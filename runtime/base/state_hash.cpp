#include "runtime/base/state_hash.hpp"

#include <algorithm>

namespace simplescale {

void hash_blocks(std::span<const float> values, std::vector<Hash128>& blocks) {
  for (size_t first = 0; first < values.size(); first += kStateHashBlock)
    blocks.push_back(hash128(values.data() + first,
                             std::min(kStateHashBlock, values.size() - first) * sizeof(float)));
}

Hash128 state_hash(const TrainState::Side& side, const Parallel& parallel) {
  const std::span<const float> parts[] = {side.params, side.exp_avg, side.exp_avg_sq};
  const size_t total = side.params.size(), blocks = (total + kStateHashBlock - 1) / kStateHashBlock;
  std::vector<Hash128> hashes(3 * blocks);
  auto hash = [&](size_t task) {
    const size_t first = task % blocks * kStateHashBlock;
    hashes[task] = hash128(parts[task / blocks].data() + first,
                           std::min(kStateHashBlock, total - first) * sizeof(float));
  };
  if (parallel)
    parallel(hashes.size(), hash);
  else
    for (size_t task = 0; task < hashes.size(); ++task) hash(task);
  return hash128(hashes.data(), hashes.size() * sizeof(Hash128));
}

}  // namespace simplescale
