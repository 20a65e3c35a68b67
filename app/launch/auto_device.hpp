// What a start derives from this host's GPUs: the meaning of cluster.device = "auto", and the
// memory of a trainer.
#pragma once

#include <string>

#include "runtime/config/config.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

/// With this variable, a command tells its agents the PCI addresses of the GPUs that they and their
/// trainers see, in CUDA's order and separated by commas. An agent does not load CUDA.
inline constexpr const char* kGpusVariable = "SIMPLESCALE_GPUS";

/// bad_config: the GPU cannot compute the configured model in fp8, or its heads.
Status check_gpu(const Config& config, const DevicePlaneOptions& gpu);
/// bad_config: cluster.device = "cuda", but this host has no NVIDIA driver, or GPUs without fp8 where
/// it is wanted. Blocks: with train.fp8 it loads the GPUs' libraries.
Status check_device(const Config& config);

/// If "auto" means GPUs, replaces it by "cuda": the plan, the memory estimate and the checks of
/// this host then assume GPUs. For strategy = "auto" sets cluster.memory_per_trainer_gib, unless it
/// is set and the GPU has that much. gpu: the GPUs of a node, or why trainers cannot use the host's
/// GPUs. Returns a warning: why GPUs are not used, or that the model does not fit; "" if there is
/// nothing to report.
std::string take_gpus(LoadedConfig& loaded, const Result<DevicePlaneOptions>& gpu);
/// The same for this host, if it has an NVIDIA GPU, and the configuration leaves something to it or
/// trainers may be bound to NUMA nodes. In that case it loads the GPUs' libraries, which takes 1 to
/// 2 s, and sets kGpusVariable for the processes that this one starts. Blocks.
std::string resolve_device(LoadedConfig& loaded);

}  // namespace simplescale
