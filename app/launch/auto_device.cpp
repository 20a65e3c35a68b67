#include "app/launch/auto_device.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/library.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/diagnostics/hardware.hpp"

namespace simplescale {
namespace {

// The usable share of a GPU's memory. The rest is for CUDA's contexts and for what the estimate
// omits.
constexpr double kUsable = 0.9;
constexpr const char* kMemory = "cluster.memory_per_trainer_gib";

/// Sets the memory. If the model does not fit, leaves the memory unknown and returns a warning,
/// because the estimate may be too high.
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

/// Windows shows its GPUs, of any maker, to Linux (WSL 2) as another device and on no PCI bus.
bool has_gpus() {
  return !read_hardware().gpus.empty() || (access("/dev/dxg", F_OK) == 0 && load_gpu_driver().ok());
}

}  // namespace

Status check_gpu(const Config& config, const DevicePlaneOptions& gpu) {
  const auto shape = model_shape(config);
  if (!shape.ok()) return {};  // the planner reports why
  SS_RETURN_IF_ERROR(validate_gpu_heads(*shape, config.train.precision));
  constexpr int kHopper = 90;
  if (!config.train.fp8 || gpu.capability == kHopper) return {};
  return Status(Code::bad_config,
                "train.fp8: only Hopper GPUs (sm_90) make products in fp8 with a scale for each "
                "block, and this one is sm_" +
                    std::to_string(gpu.capability));
}

Status check_device(const Config& config) {
  if (config.cluster.device != DeviceKind::cuda) return {};
  if (!load_gpu_driver().ok())
    return Status(
        Code::bad_config,
        "cluster.device = \"cuda\": this host has no NVIDIA driver (libcuda.so.1); install "
        "it, or use \"auto\" or \"cpu\"");
  if (!config.train.fp8) return {};  // the trainers find other problems
  const auto gpu = choose_device(0, static_cast<int>(config.cluster.trainers_per_node));
  return gpu.ok() ? check_gpu(config, *gpu) : Status();
}

std::string take_gpus(LoadedConfig& loaded, const Result<DevicePlaneOptions>& gpu) {
  Config& config = loaded.config;
  const bool chosen = config.cluster.device == DeviceKind::cuda;
  const Status usable = gpu.ok() ? check_gpu(config, *gpu) : gpu.status();
  if (!usable.ok())
    return chosen ? ""  // check_device(), or the trainers, report it
                  : "this host has GPUs, but trains on its CPUs: " + usable.message() +
                        " (cluster.device = \"cuda\" refuses to, \"cpu\" ends this warning)";
  if (!chosen) loaded.origin["cluster.device"] = "this host has a GPU";
  config.cluster.device = DeviceKind::cuda;
  return take_memory(loaded, gpu->memory_bytes);
}

std::string resolve_device(LoadedConfig& loaded) {
  const ClusterConfig& cluster = loaded.config.cluster;
  const bool asks = cluster.device == DeviceKind::automatic ||
                    (cluster.device == DeviceKind::cuda &&
                     (loaded.config.parallel.strategy == Strategy::automatic ||
                      numa_nodes().size() > 1));  // GPUs are far from some CPUs
  if (!asks || !has_gpus()) return "";
  const auto gpu = choose_device(0, static_cast<int>(cluster.trainers_per_node));
  if (gpu.ok()) setenv(kGpusVariable, joined(gpu->addresses, ",").c_str(), 1);
  return take_gpus(loaded, gpu);
}

}  // namespace simplescale
