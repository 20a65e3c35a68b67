// The data plane of a trainer on a GPU: collectives over device memory, by NCCL or through host
// memory. It wraps a CPU data plane, over which the processes connect and exchange small records.
// The control plane distributes its addresses like those of the CPU data plane.
//
//   SS_ASSIGN(const DevicePlaneOptions device, choose_device(slot, trainers_per_node));
//   SS_ASSIGN(auto plane, DataPlane::create({.shm_prefix = ...}));
//   SS_ASSIGN(plane, make_device_plane(std::move(plane), device));
//   send(plane->address());
//   SS_ASSIGN(auto shard, plane->join({.generation = 7, .name = "shard", .rank = 1, ...}));
//   SS_ASSIGN(void* full, shard->allocate(bytes));  // device memory, zeroed
//
// A communicator's buffers are device memory, except those of all_gather_bytes, which are host
// memory. Every join makes a new NCCL identifier on rank 0 and distributes it over the host
// communicator, so none outlives its generation. Before an operation starts, the work that writes
// its sources must be finished (Backend::synchronize) or be on the stream that the communicator
// follows. Wait for an operation before using its results. Threads: as DataPlane.
//
// The implementation is a separate library, libsimplescale_nccl.so; nccl_loader.cpp loads it.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "transport/collective/data_plane.hpp"

namespace simplescale {

enum class DeviceTransport : uint8_t {
  nccl = 1,    ///< one trainer per GPU
  staged = 2,  ///< through host memory: for several trainers on one GPU, or on its slices (MIG)
};

/// The environment variable with which trainers that share a GPU use NCCL: so tests run it between
/// ranks with a single GPU.
inline constexpr const char* kNcclOnSharedGpu = "SIMPLESCALE_NCCL_ON_SHARED_GPU";

struct DevicePlaneOptions {
  int device_index = 0;
  DeviceTransport transport = DeviceTransport::nccl;
  bool shared = false;             ///< there are more trainers than GPUs
  bool native_sums = false;        ///< NCCL's own (NcclCommunicator::Spec); staged ones never are
  std::vector<std::string> uuids;  ///< of this process's GPUs, as CUDA_VISIBLE_DEVICES names them;
                                   ///< empty: unsuitable
  std::vector<std::string> addresses;  ///< of the same GPUs on PCI, as /sys names them
  uint64_t memory_bytes = 0;           ///< of the smallest GPU, for each trainer that shares it
  int capability = 0;                  ///< compute capability of the GPU: 90 is sm_90
};

/// The GPU and transport of trainer `index` of `trainers` on this host. If there are more trainers
/// than GPUs, they share the GPUs evenly and use host memory, as trainers do that see slices of GPUs
/// (with kNcclOnSharedGpu: NCCL). Does not see trainers that are not counted: see claim_gpu(). Makes
/// no CUDA context. Code::unavailable, with the reason, if the library, a driver or a suitable GPU
/// is missing.
Result<DevicePlaneOptions> choose_device(int index, int trainers);

/// The address() of make_device_plane()'s plane, from the host plane's address.
inline std::vector<uint8_t> device_plane_address(std::vector<uint8_t> host,
                                                 const DevicePlaneOptions& options) {
  host.insert(host.begin(), static_cast<uint8_t>(options.transport));
  return host;
}

/// The host plane's address in that of either kind of plane, for a communicator with
/// CommunicatorSpec::host_memory. The first byte of a host plane's address is no DeviceTransport.
inline std::vector<uint8_t> host_plane_address(std::vector<uint8_t> address) {
  for (const DeviceTransport transport : {DeviceTransport::nccl, DeviceTransport::staged})
    if (!address.empty() && address[0] == static_cast<uint8_t>(transport)) {
      address.erase(address.begin());
      break;
    }
  return address;
}

/// Wraps `host`. With the staged transport, its arena must have room for everything that
/// communicators allocate; NCCL does not use the arena. All members of a communicator must use the
/// same transport, unless it has host_memory, else join() returns Code::bad_data.
Result<std::unique_ptr<DataPlane>> make_device_plane(std::unique_ptr<DataPlane> host,
                                                     const DevicePlaneOptions& options);

/// Makes NCCL's first communicator on a GPU beforehand: nccl::prepare(). Is ready with the reason if
/// the library is missing.
std::shared_future<Status> prepare_nccl(int device_index, int timeout_ms);

/// The functions of libsimplescale_nccl.so, which exports one symbol that returns them.
struct NcclLibrary {
  Result<DevicePlaneOptions> (*choose_device)(int index, int trainers);
  Result<std::unique_ptr<DataPlane>> (*make_device_plane)(std::unique_ptr<DataPlane> host,
                                                          const DevicePlaneOptions& options);
  std::shared_future<Status> (*prepare)(int device_index, int timeout_ms);
};
inline constexpr const char* kNcclLibrary = "libsimplescale_nccl.so";
inline constexpr const char* kNcclLibrarySymbol = "simplescale_nccl_library";
using NcclLibraryFunction = const NcclLibrary* (*)();

}  // namespace simplescale
