#include "runtime/feed/validation_samples.hpp"

#include <algorithm>

#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

bool due(int64_t every_steps, const Plan& plan, uint64_t step) {
  const auto every = static_cast<uint64_t>(every_steps);
  return step == 0 || step == static_cast<uint64_t>(plan.max_steps) ||
         (every > 0 && step % every == 0);
}

}  // namespace

bool validation_due(const Config& config, const Plan& plan, uint64_t step) {
  return due(config.train.validation_every_steps, plan, step);
}

bool tasks_due(const Config& config, const Plan& plan, uint64_t step) {
  return !config.train.tasks.empty() && due(config.train.tasks_every_steps, plan, step);
}

uint64_t validation_batches(const Config& config, const Plan& plan, const TokenSource& source) {
  const auto wanted = static_cast<uint64_t>(config.train.validation_samples);
  const uint64_t samples = std::min(wanted, source.samples(plan.shape.block_size));
  return samples / static_cast<uint64_t>(plan.micro_batch_size);
}

std::vector<std::string> validation_warnings(const Config& config, const Plan& plan,
                                             const RunData& data) {
  std::vector<std::string> warnings;
  if (config.train.validation_samples == 0) return warnings;
  for (const RunData::Source& source : data.sources) {
    const TokenSource& tokens = source.data.validation;
    const bool wanted = config.data.validation_fraction > 0 || tokens.tokens() > 0;
    if (!wanted || validation_batches(config, plan, tokens) > 0) continue;
    warnings.push_back(
        (source.name.empty() ? "" : source.name + ": ") + "no validation loss: the " +
        std::to_string(tokens.tokens()) + " validation tokens, or " +
        "train.validation_samples, are fewer than a micro-batch of " +
        counted(plan.micro_batch_size, "sample") + " of " + std::to_string(plan.shape.block_size) +
        " tokens (data.validation_fraction)");
  }
  return warnings;
}

uint64_t validation_position(uint64_t index, uint64_t samples, uint64_t available) {
  // index * available / samples without overflow.
  return index * (available / samples) + index * (available % samples) / samples;
}

}  // namespace simplescale
