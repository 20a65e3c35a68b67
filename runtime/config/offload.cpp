#include "runtime/config/offload.hpp"

#include <algorithm>

#include "runtime/config/check.hpp"

namespace simplescale {
namespace {

/// Why the config excludes this choice; "": it does not.
std::string excluded(const Config& config, Offload offload) {
  if (offload == Offload::none) return "";
  if (config.cluster.device != DeviceKind::cuda)
    return "only GPUs have memory of their own; a CPU trainer's state and activations are in host "
           "memory already";
  if (offloads_state(offload) && config.train.optimizer == Optimizer::muon)
    return "Muon multiplies matrices, for which it needs its state in the GPU's memory: use "
           "train.optimizer = \"adamw\", or offload = \"activations\"";
  if (offloads_inputs(offload) && config.train.activation_checkpointing != Recompute::block)
    return "without train.activation_checkpointing = true there is no block checkpointing, and a "
           "block's backward pass needs more than its input";
  return "";
}

}  // namespace

std::vector<Offload> offload_choices(const Config& config) {
  std::vector<Offload> choices;
  for (const Offload offload :
       {Offload::none, Offload::activations, Offload::optimizer, Offload::all})
    if (excluded(config, offload).empty()) choices.push_back(offload);
  return choices;
}

Config with_least_device_memory(const Config& config) {
  Config least = config;
  if (config.parallel.offload == Offload::automatic)
    least.parallel.offload = offload_choices(config).back();
  return least;
}

MemoryEstimate memory_with_offload(const Config& config, const Plan& plan, Offload offload) {
  Plan with = plan;
  with.offload = offload;
  (void)plan_wave(config, with);  // make_plan() tells its error
  return memory_with_wave(config, with, with.wave);
}

Status plan_offload(const Config& config, Plan& plan) {
  const Offload wanted = config.parallel.offload;
  plan.offload = wanted;
  plan.offload_reason = "parallel.offload is set";
  if (wanted != Offload::automatic) {
    const std::string reason = excluded(config, wanted);
    if (reason.empty() || config.cluster.device == DeviceKind::automatic) return {};
    return bad_config(std::string("parallel.offload = \"") + to_string(wanted) + "\": " + reason);
  }
  plan.offload = Offload::none;
  plan.offload_reason = "the memory of a trainer is not known";
  if (config.cluster.memory_per_trainer_gib == 0) return {};
  const std::vector<Offload> choices = offload_choices(config);
  const auto fits = [&](Offload offload) {
    return memory_with_offload(config, plan, offload).total() <= memory_of_trainer(config);
  };
  const auto first = std::ranges::find_if(choices, fits);
  plan.offload = first == choices.end() ? choices.back() : *first;
  plan.offload_reason = plan.offload == Offload::none ? "all fits a trainer's memory"
                                                      : "the first that fits a trainer's memory";
  return {};
}

uint64_t bytes_through_host(const Config& config, const Plan& plan) {
  const uint64_t c = bytes_of(config.train.precision);
  uint64_t bytes = 0;
  if (offloads_state(plan.offload))
    bytes +=
        c * uploaded_elements(config, plan) +
        sizeof(float) *
            shard_layout(units_of(plan.shape), static_cast<size_t>(plan.topology.shards)).total;
  if (offloads_inputs(plan.offload))
    bytes +=
        2 * c *
        static_cast<uint64_t>(plan.accumulation * plan.micro_batch_size * plan.shape.block_size *
                              plan.shape.dim * (plan.shape.layers - 1));
  return bytes;
}

}  // namespace simplescale
