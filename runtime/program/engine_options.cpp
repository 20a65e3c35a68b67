#include "runtime/program/engine_options.hpp"

#include <bit>
#include <string>

namespace simplescale {

uint64_t leaves_of(const EngineOptions& options, uint64_t step) {
  for (const WarmupLeaves& warmup : options.warmup)
    if (step <= warmup.until_step) return static_cast<uint64_t>(warmup.leaves);
  return static_cast<uint64_t>(options.leaves);
}

Shares shares_of(const EngineOptions& options, uint64_t leaves, uint64_t groups, uint64_t shards) {
  return Shares::by_weight(leaves, options.weights, groups, shards,
                           static_cast<uint64_t>(options.wave));
}

Status check(const EngineOptions& options, int shards, int groups) {
  SS_RETURN_IF_ERROR(validate(options.shape));
  auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  if (options.micro_batch_size < 1) return bad("micro_batch_size must be at least 1");
  if (options.leaves < 1) return bad("a step must have at least one micro-batch");
  for (const WarmupLeaves& warmup : options.warmup)
    if (warmup.leaves < 1 || warmup.leaves > options.leaves)
      return bad("a step of the warm-up has no micro-batch, or more than later steps");
  if (options.wave < 1 || !std::has_single_bit(static_cast<unsigned>(options.wave)))
    return bad("a wave of " + std::to_string(options.wave) + " micro-batches: not a power of two");
  const std::vector<uint32_t>& weights = options.weights;
  if (!weights.empty() && (weights.size() != static_cast<size_t>(groups) || !are_weights(weights)))
    return bad("the weights are not one positive number for each of the groups");
  if (options.state_in_host && options.optimizer == Optimizer::muon)
    return bad("Muon updates a state in device memory only");
  if (!(options.grad_clip >= 0)) return bad("grad_clip must not be negative");
  if (options.sharding == Sharding::no_shard && shards != 1)
    return bad("no_shard needs groups of one trainer, this group has " + std::to_string(shards));
  return {};
}

Hash128 layout_hash(const EngineOptions& o, int shards, int groups) {
  std::string text;
  for (const int n : {shards, groups, int(o.sharding), o.leaves, o.wave,
                      int(has_resident_experts(o, static_cast<size_t>(shards)))})
    text += std::to_string(n) + ' ';
  for (const WarmupLeaves& warmup : o.warmup)
    text += std::to_string(warmup.until_step) + ' ' + std::to_string(warmup.leaves) + ' ';
  for (const uint32_t weight : o.weights) text += "w" + std::to_string(weight) + ' ';
  return hash128(text.data(), text.size());
}

}  // namespace simplescale
