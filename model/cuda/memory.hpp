// Device memory that is asked for once and lives as long as its owner.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::cuda {

/// The current device must be the same in all calls.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Zeroed, 256-byte aligned. Waits up to 10 s in all for memory: a killed process's comes back
  /// when the driver has cleaned up after it, and its successor is here sooner. Code::io names the
  /// size and what is free.
  Result<void*> allocate(size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<void*> blocks_;
  std::optional<Clock::time_point> give_up_;  // set when memory was short for the first time
};

/// Host memory that the device copies from and to without a detour; grows on demand.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  /// At least `bytes`; what was there before is lost if it had to grow. Throws CudaError.
  void* reserve(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Copies from device to host memory beside the computation, on a stream of their own. Host memory
/// that the device may not reach directly is copied, too, but the caller waits meanwhile.
class HostCopies {
 public:
  HostCopies();  // throws CudaError
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// A refusal is told on stderr.
  void pin(void* host, size_t bytes);
  void unpin(void* host);
  /// Begins when what `after` has been given so far is done. Throws CudaError.
  void start(cudaStream_t after, void* host, const void* device, size_t bytes);
  void finish();

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  std::set<void*> pinned_;
};

}  // namespace simplescale::cuda
