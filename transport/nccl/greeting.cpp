#include "transport/nccl/greeting.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "transport/nccl/status.hpp"
#include "transport/nccl/stream.hpp"

namespace simplescale::nccl {
namespace {

/// Equal for processes of one host. 0: not known.
uint64_t this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? 0 : std::hash<std::string>()(boot);
}

/// True for ranks that NCCL refuses: it compares PCI addresses, which slices of a GPU share.
bool share_gpu(const Greeting& a, const Greeting& b) {
  if (a.nccl_host != b.nccl_host) return false;
  return std::ranges::equal(a.device, b.device) ||
         (a.host != 0 && a.host == b.host && std::ranges::equal(a.pci, b.pci));
}

}  // namespace

Result<Greeting> own_greeting(int device_index, uint64_t host) {
  Greeting mine{};
  int version = 0;
  SS_RETURN_IF_ERROR(nccl_status(ncclGetVersion(&version), "version", nullptr));
  mine.version = version;
  mine.host = host ? host : this_host();
  if (const char* named = std::getenv("NCCL_HOSTID"))
    mine.nccl_host = std::hash<std::string>()(named);
  cudaDeviceProp properties{};
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaGetDeviceProperties(&properties, device_index)));
  std::memcpy(mine.device, &properties.uuid, sizeof(mine.device));
  mine.pci[0] = properties.pciDomainID;
  mine.pci[1] = properties.pciBusID;
  mine.pci[2] = properties.pciDeviceID;
  return mine;
}

Status check_greetings(const std::string& name, std::span<const Greeting> all) {
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].version != all[0].version)
      return Status(Code::unavailable,
                    name + ": rank 0 has NCCL " + std::to_string(all[0].version) + ", rank " +
                        std::to_string(r) + " has " + std::to_string(all[r].version));
    for (size_t other = 0; other < r; ++other)
      if (share_gpu(all[r], all[other]))
        return Status(Code::bad_config,
                      name + ": ranks " + std::to_string(other) + " and " + std::to_string(r) +
                          " share one GPU, but NCCL needs one per rank: other runs hold the other "
                          "GPUs of that host, or its tasks see the same GPUs, or slices of the "
                          "same (CUDA_VISIBLE_DEVICES)");
  }
  return {};
}

}  // namespace simplescale::nccl
