#include "actors/trainer/validation.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/feed/samples_ahead.hpp"
#include "runtime/feed/validation_samples.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

namespace {

constexpr uint64_t kBatchesAhead = 4;  // micro-batches that are fetched while others are computed

}  // namespace

Result<MeanLoss> validation_loss(Engine& engine, const Axes& axes, TokenSource& source,
                                 const Plan& plan, uint64_t batches, WaitClock& wait) {
  const WorldRank ranks = world_of(axes);
  const auto batch_size = static_cast<uint64_t>(plan.micro_batch_size),
             available = source.samples(plan.shape.block_size);
  const uint64_t world = ranks.size, rank = ranks.rank;
  const int64_t T = plan.shape.block_size;
  const auto row = static_cast<size_t>(T + 1);
  std::vector<int32_t> tokens(batch_size * row);
  struct Part {  // of one micro-batch
    double loss;
    uint64_t trained;
  };
  std::vector<Part> parts;
  double sum = 0;
  uint64_t trained = 0;
  // Sample `index` of this rank. A rank beyond the last micro-batch computes the last one again; its
  // loss is not added.
  const auto position = [&](uint64_t index) {
    const uint64_t mine = std::min(index / batch_size * world + rank, batches - 1);
    return validation_position(mine * batch_size + index % batch_size, batches * batch_size,
                               available);
  };
  const uint64_t rounds = (batches + world - 1) / world;
  SamplesAhead ahead(source, T, rounds * batch_size, kBatchesAhead * batch_size, position);
  for (uint64_t round = 0; round < rounds; ++round) {
    ahead.announce_from(round * batch_size);
    for (uint64_t b = 0; b < batch_size; ++b)
      if (Status read =
              source.read_sample(position(round * batch_size + b), T, tokens.data() + b * row);
          !read.ok()) {
        (void)source.reopen();
        return read;
      }
    SS_ASSIGN(const double loss, engine.loss(tokens.data()));
    const std::vector<Part> own = {
        {loss, trained_targets(tokens.data(), plan.micro_batch_size, T)}};
    {
      const Waiting waiting(wait);
      SS_ASSIGN(parts, gather_world(axes, own));
    }
    for (uint64_t i = 0; i < world && round * world + i < batches; ++i)
      sum += parts[i].loss, trained += parts[i].trained;
  }
  if (trained == 0) return MeanLoss{};
  const double over = over_trained(batches * batch_size * static_cast<uint64_t>(T), trained);
  const auto count = static_cast<double>(batches);
  return MeanLoss{sum / count * over, count / over, trained};
}

Result<ValidationLosses> validation_losses(Engine& engine, const Axes& axes,
                                           std::vector<ValidationSource>& sources, const Plan& plan,
                                           WaitClock& wait) {
  ValidationLosses losses;
  double sum = 0, batches = 0;
  for (ValidationSource& source : sources) {
    MeanLoss of_source;
    if (source.batches > 0) {
      SS_ASSIGN(of_source,
                validation_loss(engine, axes, source.tokens, plan, source.batches, wait));
    }
    losses.sources.push_back(of_source.mean);
    losses.targets.push_back(of_source.targets);
    if (of_source.targets == 0) continue;
    sum += of_source.mean * of_source.batches;
    batches += of_source.batches;
  }
  if (batches > 0) losses.loss = sources.size() == 1 ? losses.sources.front() : sum / batches;
  return losses;
}

Result<TaskScores> task_scores(Engine& engine, const Axes& axes, const TaskBatches& tasks,
                               const Plan& plan, WaitClock& wait) {
  const WorldRank ranks = world_of(axes);
  const uint64_t world = ranks.size, batches = tasks.batches();
  std::vector<int32_t> tokens(static_cast<size_t>(plan.micro_batch_size) *
                              static_cast<size_t>(plan.shape.block_size + 1));
  std::vector<double> own(tasks.most_sequences()), gathered, all(tasks.sequences());
  for (uint64_t first = 0; first < batches; first += world) {
    // As in validation_loss(), a rank beyond the last micro-batch computes that one again.
    const uint64_t mine = std::min(first + ranks.rank, batches - 1);
    tasks.fill(mine, tokens.data());
    SS_ASSIGN(const std::span<const float> losses, engine.losses(tokens.data()));
    tasks.sum(mine, losses, own.data());
    {
      const Waiting waiting(wait);
      SS_ASSIGN(gathered, gather_world(axes, own));
    }
    for (uint64_t i = 0; i < world && first + i < batches; ++i) {
      const uint64_t begin = tasks.first(first + i), end = tasks.first(first + i + 1);
      std::copy_n(gathered.data() + i * own.size(), end - begin, all.data() + begin);
    }
  }
  return tasks.scores(all);
}

}  // namespace simplescale
