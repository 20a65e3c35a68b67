// What a start learns from this host's GPUs: what cluster.device = "auto" means, and how much memory
// a trainer has.
#pragma once

#include <string>

#include "runtime/config/config.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

/// The variable by which a command tells its agents the PCI addresses of the GPUs that they and their
/// trainers see, in CUDA's order and with commas between them. An agent does not load CUDA.
inline constexpr const char* kGpusVariable = "SIMPLESCALE_GPUS";

/// bad_config: the GPU cannot compute the configured model in fp8, or its heads.
Status check_gpu(const Config& config, const DevicePlaneOptions& gpu);
/// bad_config: cluster.device = "cuda", but this host has no NVIDIA driver, or GPUs without fp8 where
/// it is wanted. Blocks: with train.fp8 it loads the GPUs' libraries.
Status check_device(const Config& config);

/// Where "auto" means GPUs, makes it "cuda": the plan, the memory estimate and the checks of this
/// host are then those of GPUs. For strategy = "auto" sets cluster.memory_per_trainer_gib, unless it
/// is set and the GPU has so much. gpu: whether trainers can use the GPUs that the host has, and
/// those of a node. Returns why not, or that the model does not fit, as a warning; "" if there is
/// nothing to tell.
std::string take_gpus(LoadedConfig& loaded, const Result<DevicePlaneOptions>& gpu);
/// The same of this host, if it has a GPU of NVIDIA, and the configuration leaves something to it or
/// trainers may be bound to NUMA nodes. Then it loads the GPUs' libraries, which takes 1 to 2 s, and
/// sets kGpusVariable for the processes that this one starts. Blocks.
std::string resolve_device(LoadedConfig& loaded);

}  // namespace simplescale
