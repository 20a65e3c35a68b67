// The CUDA backend's memory: device memory, pinned host memory, copies of the state to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "runtime/base/patience.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::cuda {

/// Makes `index` the current device and creates its context, in which threads that wait for the GPU
/// sleep. Out of memory is tried again with Patience. Throws CudaError.
void use_device(int index);

/// Device memory that is allocated once and lives as long as this object. The current device must
/// be the same in all calls.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Zeroed, 256-byte aligned memory. Out of memory is tried again with Patience. io: the error
  /// names the size and the free memory.
  Result<void*> allocate(size_t bytes);

 private:
  std::vector<void*> blocks_;
  Patience patience_;
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

/// Host memory that is registered with the driver for as long as this object lives. The driver
/// registers 1 to 2 GB a second, so this object's thread registers one piece after the other, and
/// the compute thread does not wait. Pieces end at multiples of kPieceBytes in the address space.
/// No copy may cross such an end (for_each_piece): the driver refuses a copy of which only a part
/// is registered.
class PinnedRange {
 public:
  static constexpr size_t kPieceBytes = size_t{64} << 20;

  /// The memory must stay mapped until the destructor has returned. The current device must be set.
  PinnedRange(void* host, size_t bytes);
  /// Waits until the piece in work is registered.
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  /// True once all of it is registered, if it contains this memory.
  bool covers(const void* host, size_t bytes) const {
    const auto* begin = static_cast<const char*>(host);
    return complete_ && begin_ <= begin && begin + bytes <= begin_ + bytes_;
  }

 private:
  void pin(std::stop_token stop, int device);

  char* begin_;
  size_t bytes_;
  std::atomic<bool> complete_{false};
  std::vector<void*> pieces_;  // registered; only the thread uses it while it runs
  std::jthread thread_;
};

/// Calls body(offset, bytes) for each piece of host memory that one copy may take: pieces end at
/// multiples of 16 MiB in the address space, so none crosses an end of a PinnedRange's piece. One
/// call registers such a piece, and we rely on the driver to let it take effect as a whole: a copy
/// that begins meanwhile finds all of its memory registered, or none.
template <class Body>
void for_each_piece(const void* host, size_t bytes, Body body) {
  // Short copies (losses, norms) need not wait for a whole piece of a PinnedRange.
  constexpr size_t kCopyBytes = size_t{16} << 20;
  static_assert(PinnedRange::kPieceBytes % kCopyBytes == 0);
  for (size_t at = 0, piece; at < bytes; at += piece) {
    piece =
        std::min(bytes - at, kCopyBytes - (reinterpret_cast<uintptr_t>(host) + at) % kCopyBytes);
    body(at, piece);
  }
}

/// A stream beside the computation, of the lowest priority: the device runs its kernels where those
/// of other streams leave room. Throws CudaError.
class SideStream {
 public:
  SideStream();
  /// Waits for the work.
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  cudaStream_t get() const { return stream_; }
  /// What is enqueued from now on begins after all work enqueued on `other` so far.
  void follow(cudaStream_t other);
  /// Waits for all work.
  void finish();

 private:
  cudaStream_t stream_ = nullptr;
};

/// Copies from device to host memory, concurrent with the computation, on a stream of its own. If the
/// host memory is not pinned yet, the driver blocks the thread that asks for a copy, and may block
/// every other call on that stream meanwhile: then only threads of this object make these calls.
class HostCopies {
 public:
  /// Begins to pin this memory, unless it is pinned. If the driver refuses, logs it on stderr.
  void pin(void* host, size_t bytes) { pinned_.try_emplace(host, host, bytes); }
  void unpin(void* host) { pinned_.erase(host); }
  /// Begins after all work enqueued on `after` so far, and returns at once. Throws CudaError.
  void start(cudaStream_t after, void* host, const void* device, size_t bytes);
  /// Waits for all copies. Throws CudaError.
  void finish();

 private:
  std::map<void*, PinnedRange> pinned_;
  SideStream stream_;                      // ends before the memory is unpinned
  std::vector<std::future<void>> begins_;  // copies that threads begin; these end before the stream
};

}  // namespace simplescale::cuda
