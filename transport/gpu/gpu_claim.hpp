// Which GPU of its host a trainer takes. The number of trainers on a host is not known to all: two
// runs, or nodes that were started apart, do not count each other. So each trainer locks its GPU,
// by the GPU's UUID, among all processes of this user on this host.
#pragma once

#include <string>

#include "runtime/base/device_memory_retry.hpp"
#include "runtime/base/host_lock.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

struct GpuClaim {
  int device_index = 0;
  HostLock lock;        // until the process ends
  std::string warning;  // of sharing a GPU: what it costs, what to do; empty: none
};

/// Locks device.device_index, or the next GPU that is free. Trainers that share GPUs by
/// choose_device() share the lock, too. If no GPU becomes free within `patience`, returns
/// device.device_index without a lock, and a warning. io. Blocks.
Result<GpuClaim> claim_gpu(const DevicePlaneOptions& device,
                           DeviceMemoryRetry patience = DeviceMemoryRetry());

}  // namespace simplescale
