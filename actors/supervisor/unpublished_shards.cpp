#include "actors/supervisor/unpublished_shards.hpp"

#include "actors/supervisor/decision/rollback.hpp"

#include <algorithm>

namespace simplescale {

std::vector<ShardSaved> take_publishable(std::vector<ShardSaved>& unpublished,
                                         const job::State& job, uint64_t recorded) {
  std::vector<ShardSaved> ready;
  const uint64_t newest_joined = job::newest_joined(job);
  std::erase_if(unpublished, [&](const ShardSaved& saved) {
    if (!job::trusted(job, saved.step, saved.generation)) return true;
    if (job.has_checkpoint && saved.step <= job.checkpoint_step) return true;
    // With these shards the publisher would drop all shards of the training generation, because it
    // only keeps those of the newest one.
    if (saved.generation > newest_joined) return false;
    // Replicas compare the state of a step in the next step, or before they finish. If agents save
    // a state, no newer one is left, and no comparison follows.
    const bool compared =
        saved.step < recorded ||
        (saved.step == recorded && saved.generation == job.saving.generation) ||
        (saved.step == recorded && std::ranges::any_of(job.trainers, [&](const auto& entry) {
           const job::Trainer& trainer = entry.second;
           return trainer.state == job::TrainerState::finished && trainer.step == saved.step;
         }));
    if (compared) ready.push_back(saved);
    return compared;
  });
  return ready;
}

bool WrittenShards::add(const ShardSaved& saved) {
  if (saved.generation < generation_) return false;
  if (saved.generation > generation_) steps_.clear();
  generation_ = saved.generation;
  Step& step = steps_[saved.step];
  if (step.ended) return false;
  step.shards.insert(saved.shard);
  step.ended = !saved.error.empty() || step.shards.size() == saved.shards;
  const bool given = step.ended && saved.error.empty();
  if (given) steps_.erase(steps_.begin(), steps_.find(saved.step));
  return given;
}

}  // namespace simplescale
