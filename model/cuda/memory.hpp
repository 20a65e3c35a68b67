// Device memory that is asked for once and lives as long as its owner.
#pragma once

#include <cstddef>
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

  /// Zeroed, 256-byte aligned. Code::io names the size and what is free.
  Result<void*> allocate(size_t bytes);

 private:
  std::vector<void*> blocks_;
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

}  // namespace simplescale::cuda
