// What a GPU keeps in host memory (parallel.offload): the state, which the host's threads then
// update, and the inputs of blocks. No bit depends on it. Pure functions.
#pragma once

#include <vector>

#include "runtime/config/topology.hpp"

namespace simplescale {

constexpr bool offloads_state(Offload offload) {
  return offload == Offload::optimizer || offload == Offload::all;
}
constexpr bool offloads_inputs(Offload offload) {
  return offload == Offload::activations || offload == Offload::all;
}

/// What `auto` chooses from, the cheapest first: only `none` without GPUs, no state with Muon, no
/// inputs without checkpoints of blocks.
std::vector<Offload> offload_choices(const Config& config);

/// The same config with the choice that needs the least device memory, if the key is `auto`.
Config with_least_device_memory(const Config& config);

/// Sets offload and offload_reason; the plan has its topology and batch. bad_config: the key names
/// what this device, optimizer or activation_checkpointing excludes.
Status plan_offload(const Config& config, Plan& plan);
/// The plan's memory with another choice, and the wave that plan_wave() takes with it.
MemoryEstimate memory_with_offload(const Config& config, const Plan& plan, Offload offload);

/// The widest wave that plan_wave() takes: the largest power of two in `accumulation`.
int64_t widest_wave(int64_t accumulation);

/// True if the sums of a unit's gradients leave the plan's GPUs when they are complete; otherwise those of
/// all units stay until the end of a step.
bool sums_leave_device(const Config& config, const Plan& plan);
/// Elements that a trainer of the plan uploads of its shard in a step, with its state in host memory:
/// once, or for each gather of a unit.
uint64_t uploaded_elements(const Config& config, const Plan& plan);
/// Bytes that a trainer of the plan copies between host and GPU in a step, both ways together.
uint64_t bytes_through_host(const Config& config, const Plan& plan);

}  // namespace simplescale
