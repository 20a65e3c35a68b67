// The data plane of a trainer on a GPU: collectives over device memory, by NCCL or through host
// memory. It wraps the CPU's data plane, over which processes find each other and exchange what is
// small; so addresses travel through the control plane as before.
//
//   SS_ASSIGN(const DevicePlaneOptions device, choose_device(slot, trainers_per_node));
//   SS_ASSIGN(auto plane, DataPlane::create({.shm_prefix = ...}));
//   SS_ASSIGN(plane, make_device_plane(std::move(plane), device));
//   send(plane->address());
//   SS_ASSIGN(auto shard, plane->join({.generation = 7, .name = "shard", .rank = 1, ...}));
//   SS_ASSIGN(void* full, shard->allocate(bytes));  // device memory, zeroed
//
// A communicator's buffers are device memory, but for all_gather_bytes, whose are the host's. Every
// join makes a fresh NCCL identifier on rank 0 and hands it round over the CPU's communicator, so
// none outlives its generation. Work on device memory must be finished before an operation starts
// (Backend::synchronize), or be on the stream that the communicator follows; an operation is waited
// for before its results are used. Threads: as
// DataPlane.
//
// The implementation is a library of its own beside the program, libsimplescale_nccl.so, loaded
// here.
#pragma once

#include <memory>

#include "transport/collective/data_plane.hpp"

namespace simplescale {

enum class DeviceTransport : uint8_t {
  nccl = 1,    ///< one trainer a GPU
  staged = 2,  ///< copied to host memory and back: for several trainers on one GPU
};

struct DevicePlaneOptions {
  int device_index = 0;
  DeviceTransport transport = DeviceTransport::nccl;
};

/// The GPU of trainer `index` of `trainers` on this host. More trainers than GPUs share them evenly
/// and go through host memory. unavailable with the reason where the library, a driver or a GPU
/// that it is built for is missing.
Result<DevicePlaneOptions> choose_device(int index, int trainers);

/// What a plane's address() becomes with make_device_plane(): for those who must tell it before.
inline std::vector<uint8_t> device_plane_address(std::vector<uint8_t> host,
                                                 const DevicePlaneOptions& options) {
  host.insert(host.begin(), static_cast<uint8_t>(options.transport));
  return host;
}

/// The arena of `host` must hold what communicators allocate if the transport is staged; NCCL's do
/// not use it. All members of a communicator must use the same transport; join() says so otherwise.
Result<std::unique_ptr<DataPlane>> make_device_plane(std::unique_ptr<DataPlane> host,
                                                     const DevicePlaneOptions& options);

/// The one symbol by which the program reaches libsimplescale_nccl.so.
struct NcclLibrary {
  Result<DevicePlaneOptions> (*choose_device)(int index, int trainers);
  Result<std::unique_ptr<DataPlane>> (*make_device_plane)(std::unique_ptr<DataPlane> host,
                                                          const DevicePlaneOptions& options);
};
inline constexpr const char* kNcclLibrary = "libsimplescale_nccl.so";
inline constexpr const char* kNcclLibrarySymbol = "simplescale_nccl_library";
using NcclLibraryFunction = const NcclLibrary* (*)();

}  // namespace simplescale
