#include "app/launch/unused_gpus.hpp"

#include "runtime/diagnostics/hardware.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

std::string unused_gpus(const Config& config) {
  if (config.cluster.device != DeviceKind::automatic || read_hardware().gpus.empty()) return "";
  const Status usable = choose_device(0, 1).status();
  if (usable.ok()) return "";
  return "this host has GPUs, but trains on its CPUs: " + usable.message() +
         " (cluster.device = \"cuda\" refuses to, \"cpu\" ends this warning)";
}

}  // namespace simplescale
