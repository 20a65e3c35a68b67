#include "model/program/engine_options.hpp"

#include <bit>
#include <ios>
#include <sstream>
#include <string>

#include "runtime/base/hash.hpp"

namespace simplescale {

uint64_t leaves_of(const EngineOptions& options, uint64_t step) {
  for (const WarmupLeaves& warmup : options.warmup)
    if (step <= warmup.until_step) return static_cast<uint64_t>(warmup.leaves);
  return static_cast<uint64_t>(options.leaves);
}

Status check(const EngineOptions& options, int shards) {
  SS_RETURN_IF_ERROR(validate(options.shape));
  auto bad = [](const std::string& text) { return Status(Code::bad_config, text); };
  if (options.micro_batch_size < 1) return bad("micro_batch_size must be at least 1");
  if (options.leaves < 1) return bad("a step must have at least one micro-batch");
  for (const WarmupLeaves& warmup : options.warmup)
    if (warmup.leaves < 1 || warmup.leaves > options.leaves)
      return bad("a step of the warm-up has no micro-batch, or more than later steps");
  if (options.wave < 1 || !std::has_single_bit(static_cast<unsigned>(options.wave)))
    return bad("a wave of " + std::to_string(options.wave) + " micro-batches: not a power of two");
  if (!(options.grad_clip >= 0)) return bad("grad_clip must not be negative");
  if (options.sharding == Sharding::no_shard && shards != 1)
    return bad("no_shard needs groups of one trainer, this group has " + std::to_string(shards));
  return {};
}

uint64_t hash_of(const EngineOptions& o, int shards, int groups) {
  std::ostringstream text;
  text << std::hexfloat << identity_text(o.shape);
  for (int n : {int(o.precision), o.micro_batch_size, o.leaves, o.wave, int(o.sharding),
                int(o.deterministic), int(o.fp8), shards, groups})
    text << n << ' ';
  for (float x : {o.grad_clip, o.weight_decay, o.beta1, o.beta2, o.eps}) text << x << ' ';
  for (const ParameterGroup& group : o.groups)
    text << group.pattern << '\0' << group.learning_rate_factor << ' '
         << group.weight_decay.value_or(-1) << ' ';
  for (const WarmupLeaves& warmup : o.warmup)
    text << warmup.until_step << ' ' << warmup.leaves << ' ';
  text << o.z_loss << ' ' << int(o.optimizer) << ' ' << o.muon_momentum << ' ' << o.ema_decay
       << ' ';
  if (o.moments != DType::f32) text << int(o.moments) << ' ' << o.seed << ' ';
  const std::string bytes = text.str();
  return hash128(bytes.data(), bytes.size()).low;
}

}  // namespace simplescale
