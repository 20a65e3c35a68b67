#include "actors/trainer/validation.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "runtime/feed/samples_ahead.hpp"
#include "runtime/feed/validation_samples.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

namespace {

constexpr uint64_t kBatchesAhead = 4;  // micro-batches that are fetched while others are computed

/// What a rank knows of its micro-batch: the mean loss, to which targets that are not trained add
/// nothing, and how many are; then for each position_group() the sum of losses and the targets.
std::vector<double> part_of(std::span<const float> losses, const int32_t* tokens, int64_t T,
                            size_t groups) {
  std::vector<double> part(2 + 2 * groups);
  const auto count = static_cast<int64_t>(losses.size());
  for (const float loss : losses) part[0] += double{loss};  // as Backend::loss()
  part[0] /= static_cast<double>(count);
  int64_t first = 0;  // that the token sees
  for (int64_t n = 0; n < count; ++n) {
    const int32_t* input = tokens + n / T * (T + 1) + n % T;
    if (n % T == 0 || (input[0] & kBeginsDocument) != 0) first = n;
    if ((input[1] & kNotTrained) != 0) continue;
    double* sum = part.data() + 2 + 2 * position_group(n - first);
    sum[0] += double{losses[static_cast<size_t>(n)]};
    sum[1] += 1, part[1] += 1;
  }
  return part;
}

}  // namespace

Result<MeanLoss> validation_loss(Engine& engine, const Axes& axes, TokenSource& source,
                                 const Plan& plan, uint64_t batches, int64_t length,
                                 WaitClock& wait) {
  const WorldRank ranks = world_of(axes);
  const auto batch_size = static_cast<uint64_t>(plan.micro_batch_size),
             available = source.samples(plan.shape.block_size);
  const uint64_t world = ranks.size, rank = ranks.rank;
  const int64_t T = plan.shape.block_size;
  const auto row = static_cast<size_t>(T + 1);
  std::vector<int32_t> tokens(batch_size * row);
  const size_t groups = position_group(length - 1) + 1, width = 2 + 2 * groups;
  std::vector<double> parts;  // of each rank: part_of()
  double sum = 0;
  MeanLoss result;
  result.by_position.resize(groups);
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
    cut_samples(tokens.data(), plan.micro_batch_size, T, length);
    SS_ASSIGN(const std::span<const float> losses, engine.losses(tokens.data()));
    const std::vector<double> own = part_of(losses, tokens.data(), T, groups);
    {
      const Waiting waiting(wait);
      SS_ASSIGN(parts, gather_world(axes, own));
    }
    for (uint64_t i = 0; i < world && round * world + i < batches; ++i) {
      const double* part = parts.data() + i * width;
      sum += part[0];
      result.targets += static_cast<uint64_t>(part[1]);
      for (size_t g = 0; g < groups; ++g) {
        result.by_position[g].loss += part[2 + 2 * g];
        result.by_position[g].targets += part[3 + 2 * g];
      }
    }
  }
  if (result.targets == 0) return result;
  const double over = over_trained(batches * batch_size * static_cast<uint64_t>(T), result.targets);
  const auto count = static_cast<double>(batches);
  result.mean = sum / count * over, result.batches = count / over;
  return result;
}

Result<ValidationLosses> validation_losses(Engine& engine, const Axes& axes,
                                           std::vector<ValidationSource>& sources, const Plan& plan,
                                           const std::vector<int64_t>& lengths, WaitClock& wait) {
  ValidationLosses losses;
  std::vector<MeanLoss::Sum> positions;
  std::vector<int64_t> all = lengths;
  all.insert(all.begin(), plan.shape.block_size);
  for (size_t k = 0; k < all.size(); ++k) {
    double sum = 0, batches = 0, mean = std::numeric_limits<double>::quiet_NaN();
    for (ValidationSource& source : sources) {
      MeanLoss of_source;
      if (source.batches > 0) {
        SS_ASSIGN(of_source,
                  validation_loss(engine, axes, source.tokens, plan, source.batches, all[k], wait));
      }
      if (k == 0) {
        losses.sources.push_back(of_source.mean);
        losses.targets.push_back(of_source.targets);
        positions.resize(std::max(positions.size(), of_source.by_position.size()));
        for (size_t g = 0; g < of_source.by_position.size(); ++g)
          positions[g].loss += of_source.by_position[g].loss,
              positions[g].targets += of_source.by_position[g].targets;
      }
      if (of_source.targets == 0) continue;
      sum += of_source.mean * of_source.batches;
      batches += of_source.batches;
      if (sources.size() == 1) mean = of_source.mean;
    }
    if (batches > 0 && sources.size() > 1) mean = sum / batches;
    if (k == 0)
      losses.loss = mean;
    else
      losses.lengths.push_back(mean);
  }
  for (const MeanLoss::Sum& of : positions)
    losses.positions.push_back(of.targets > 0 ? of.loss / of.targets
                                              : std::numeric_limits<double>::quiet_NaN());
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
