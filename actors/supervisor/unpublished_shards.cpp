#include "actors/supervisor/unpublished_shards.hpp"

#include <algorithm>

namespace simplescale {

std::vector<ShardSaved> take_publishable(std::vector<ShardSaved>& unpublished,
                                         const job::State& job, uint64_t recorded) {
  std::vector<ShardSaved> ready;
  std::erase_if(unpublished, [&](const ShardSaved& saved) {
    if (!job::trusted(job, saved.step, saved.generation)) return true;
    if (job.has_checkpoint && saved.step <= job.checkpoint_step) return true;
    // Replicas compare the state of a step in the next one, or before they finish.
    const bool compared =
        saved.step < recorded ||
        (saved.step == recorded && std::ranges::any_of(job.trainers, [&](const auto& entry) {
           const job::Trainer& trainer = entry.second;
           return trainer.state == job::TrainerState::finished && trainer.step == saved.step;
         }));
    if (compared) ready.push_back(saved);
    return compared;
  });
  return ready;
}

bool WrittenShards::add(const ShardSaved& saved, size_t shards) {
  const std::pair key(saved.generation, saved.step);
  if (!saved.error.empty()) return false;
  shards_.erase(shards_.begin(), shards_.lower_bound({saved.generation, 0}));
  std::set<uint64_t>& known = shards_[key];
  known.insert(saved.shard);
  if (known.size() < shards) return false;
  shards_.erase(shards_.lower_bound({saved.generation, 0}), shards_.upper_bound(key));
  return true;
}

}  // namespace simplescale
