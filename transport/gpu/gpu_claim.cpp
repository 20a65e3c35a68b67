#include "transport/gpu/gpu_claim.hpp"

#include <algorithm>

namespace simplescale {

namespace {

/// Of a GPU's lock: the digits of its UUID.
std::string lock_name(std::string uuid) {
  std::erase(uuid, '-');
  return "gpu-" + uuid.substr(std::min<size_t>(3, uuid.size()));  // without "GPU" or "MIG"
}

/// Tries each GPU once. unavailable: none is free.
Result<GpuClaim> claim_free(const DevicePlaneOptions& device) {
  const int count = static_cast<int>(device.uuids.size());
  for (int tried = 0; tried < count; ++tried) {
    const int index = (device.device_index + tried) % count;
    const std::string& uuid = device.uuids[static_cast<size_t>(index)];
    if (uuid.empty()) continue;
    Result<HostLock> lock = HostLock::take(lock_name(uuid), device.shared);
    if (lock.ok()) return GpuClaim{index, lock.take(), ""};
    if (lock.status().code() != Code::unavailable) return lock.status();
  }
  return Status(Code::unavailable, "no GPU is free");
}

}  // namespace

Result<GpuClaim> claim_gpu(const DevicePlaneOptions& device, DeviceMemoryRetry patience) {
  // A trainer that was killed may hold its GPU until the driver has freed its memory.
  Result<GpuClaim> claim = claim_free(device);
  while (claim.status().code() == Code::unavailable && patience.again()) claim = claim_free(device);
  const std::string gpus = std::to_string(device.uuids.size()) + " GPUs that it sees";
  if (!claim.ok()) {
    if (claim.status().code() != Code::unavailable) return claim.status();
    return GpuClaim{device.device_index,
                    {},
                    "other processes of this user hold all " + gpus + ": it shares GPU " +
                        std::to_string(device.device_index) +
                        " with one of them, so both are slower and may run out of its memory. End "
                        "the other run, or start both with different CUDA_VISIBLE_DEVICES"};
  }
  if (device.shared && device.transport == DeviceTransport::staged)
    claim->warning = "this host has more trainers than the " + gpus +
                     ": they share GPUs, and all their collectives go through host memory instead "
                     "of NCCL, which "
                     "is many times slower. Set cluster.trainers_per_node to the number of GPUs of "
                     "a node; under "
                     "Slurm, give each task GPUs of its own (--gpus-per-task)";
  return claim;
}

}  // namespace simplescale
