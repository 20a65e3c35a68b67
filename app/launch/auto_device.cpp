#include "app/launch/auto_device.hpp"

#include "runtime/diagnostics/hardware.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

std::string take_gpus(LoadedConfig& loaded, const Status& usable) {
  if (!usable.ok())
    return "this host has GPUs, but trains on its CPUs: " + usable.message() +
           " (cluster.device = \"cuda\" refuses to, \"cpu\" ends this warning)";
  loaded.config.cluster.device = DeviceKind::cuda;
  loaded.origin["cluster.device"] = "this host has a GPU";
  return "";
}

std::string resolve_device(LoadedConfig& loaded) {
  if (loaded.config.cluster.device != DeviceKind::automatic || read_hardware().gpus.empty())
    return "";
  return take_gpus(loaded, choose_device(0, 1).status());
}

}  // namespace simplescale
