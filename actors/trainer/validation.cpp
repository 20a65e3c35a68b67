#include "actors/trainer/validation.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/data/validation_samples.hpp"

namespace simplescale {

Result<double> validation_loss(Engine& engine, Collective& shard, Collective& replicate,
                               TokenSource& source, const Plan& plan, uint64_t batches,
                               WaitClock& wait) {
  const auto batch_size = static_cast<uint64_t>(plan.micro_batch_size),
             shards = static_cast<uint64_t>(shard.size()),
             available = source.samples(plan.shape.block_size),
             world = shards * static_cast<uint64_t>(replicate.size()),
             rank = static_cast<uint64_t>(replicate.rank()) * shards +
                    static_cast<uint64_t>(shard.rank());
  const auto row = static_cast<size_t>(plan.shape.block_size + 1);
  std::vector<int32_t> tokens(batch_size * row);
  std::vector<double> group_losses(shards);
  std::vector<double> losses(world);
  double sum = 0;
  for (uint64_t first = 0; first < batches; first += world) {
    // A rank beyond the last micro-batch computes the last one again; its loss is not added.
    const uint64_t mine = std::min(first + rank, batches - 1);
    for (uint64_t b = 0; b < batch_size; ++b)
      if (Status read = source.read_sample(
              validation_position(mine * batch_size + b, batches * batch_size, available),
              plan.shape.block_size, tokens.data() + b * row);
          !read.ok()) {
        (void)source.reopen();
        return read;
      }
    SS_ASSIGN(const double loss, engine.loss(tokens.data()));
    const Waiting waiting(wait);
    SS_RETURN_IF_ERROR(shard.all_gather_bytes(&loss, group_losses.data(), sizeof loss)->wait());
    SS_RETURN_IF_ERROR(
        replicate
            .all_gather_bytes(group_losses.data(), losses.data(), group_losses.size() * sizeof loss)
            ->wait());
    for (uint64_t i = 0; i < world && first + i < batches; ++i) sum += losses[i];
  }
  return sum / static_cast<double>(batches);
}

Result<ValidationLosses> validation_losses(Engine& engine, Collective& shard, Collective& replicate,
                                           std::vector<ValidationSource>& sources, const Plan& plan,
                                           WaitClock& wait) {
  ValidationLosses losses;
  double sum = 0, batches = 0;
  for (ValidationSource& source : sources) {
    losses.sources.push_back(std::numeric_limits<double>::quiet_NaN());
    if (source.batches == 0) continue;
    SS_ASSIGN(losses.sources.back(),
              validation_loss(engine, shard, replicate, source.tokens, plan, source.batches, wait));
    sum += losses.sources.back() * static_cast<double>(source.batches);
    batches += static_cast<double>(source.batches);
  }
  SS_ASSERT(batches > 0);
  losses.loss = sources.size() == 1 ? losses.sources.front() : sum / batches;
  return losses;
}

}  // namespace simplescale
