#include "app/launch/auto_device.hpp"

#include <cmath>

#include "runtime/config/topology.hpp"
#include "runtime/diagnostics/hardware.hpp"

namespace simplescale {
namespace {

// Of a GPU's memory. The rest is for the contexts of CUDA, and for what the estimate leaves out.
constexpr double kUsable = 0.9;
constexpr const char* kMemory = "cluster.memory_per_trainer_gib";

/// Leaves the memory unknown, and says so, if the model does not fit: the estimate may be too high.
std::string take_memory(LoadedConfig& loaded, uint64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1u << 30);
  Config known = loaded.config;
  double& memory = known.cluster.memory_per_trainer_gib;
  if (known.parallel.strategy != Strategy::automatic || (memory > 0 && memory <= gib)) return "";
  memory = std::floor(10 * kUsable * gib) / 10;
  const auto unknown = [&] {
    loaded.config.cluster.memory_per_trainer_gib = 0;
    return plan_topology(loaded.config).ok();
  };
  if (const Status fits = plan_topology(known).status(); !fits.ok() && unknown())
    return "the model may not fit this host's GPUs: " + fits.message();
  loaded.config = known;
  loaded.origin[kMemory] = "90 % of this host's GPU";
  return "";
}

}  // namespace

std::string take_gpus(LoadedConfig& loaded, const Result<DevicePlaneOptions>& gpu) {
  Config& config = loaded.config;
  const bool chosen = config.cluster.device == DeviceKind::cuda;
  if (!gpu.ok())
    return chosen ? ""  // the trainers refuse to start
                  : "this host has GPUs, but trains on its CPUs: " + gpu.status().message() +
                        " (cluster.device = \"cuda\" refuses to, \"cpu\" ends this warning)";
  if (!chosen) loaded.origin["cluster.device"] = "this host has a GPU";
  config.cluster.device = DeviceKind::cuda;
  return take_memory(loaded, gpu->memory_bytes);
}

std::string resolve_device(LoadedConfig& loaded) {
  const Config& config = loaded.config;
  const bool asks = config.cluster.device == DeviceKind::automatic ||
                    (config.cluster.device == DeviceKind::cuda &&
                     config.parallel.strategy == Strategy::automatic);
  if (!asks || read_hardware().gpus.empty()) return "";
  return take_gpus(loaded, choose_device(0, static_cast<int>(config.cluster.trainers_per_node)));
}

}  // namespace simplescale
