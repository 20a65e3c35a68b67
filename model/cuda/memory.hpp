// The CUDA backend's memory: device memory, pinned host memory, copies of the state to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::cuda {

/// Device memory that is allocated once and lives as long as this object. The current device must
/// be the same in all calls.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Zeroed, 256-byte aligned memory. Retries for up to 10 s in total: the driver frees a killed
  /// process's memory some time after its successor has started. io: the error names the size and
  /// the free memory.
  Result<void*> allocate(size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<void*> blocks_;
  std::optional<Clock::time_point> give_up_;  // set by the first allocation that fails
};

/// Pinned host memory, which the device accesses directly; grows on demand.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  /// At least `bytes` of memory. The contents are lost if it must grow. Throws CudaError.
  void* reserve(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Copies from device to host memory, concurrent with the computation, on a stream of its own. For
/// host memory that is not pinned, start() blocks during the copy.
class HostCopies {
 public:
  HostCopies();  // throws CudaError
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// If the driver refuses, logs it on stderr.
  void pin(void* host, size_t bytes);
  void unpin(void* host);
  /// Begins after all work enqueued on `after` so far. Throws CudaError.
  void start(cudaStream_t after, void* host, const void* device, size_t bytes);
  /// Waits for all copies. Throws CudaError.
  void finish();

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  std::set<void*> pinned_;
};

}  // namespace simplescale::cuda
