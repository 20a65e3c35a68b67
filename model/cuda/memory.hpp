// The CUDA backend's memory: device memory, pinned host memory, copies of the state to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/device_memory_retry.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::cuda {

/// Makes `index` the current device and creates its context, in which threads that wait for the GPU
/// sleep. Out of memory is tried again with DeviceMemoryRetry. Throws CudaError.
void use_device(int index);

/// Device memory that is allocated once and lives as long as this object. The current device must
/// be the same in all calls.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Zeroed, 256-byte aligned memory. Out of memory is tried again with DeviceMemoryRetry. io: the error
  /// names the size and the free memory.
  Result<void*> allocate(size_t bytes);

 private:
  std::vector<void*> blocks_;
  DeviceMemoryRetry patience_;
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
  bool covers(const void* host, size_t bytes) const {
    const auto *begin = static_cast<const char*>(host), *data = static_cast<const char*>(data_);
    return data && data <= begin && begin + bytes <= data + bytes_;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Host memory that is registered with the driver for as long as this object lives. The driver
/// registers 4 GB a second of pages that this process has not used, 30 GB of others, and lets other
/// calls wait meanwhile. So this object's thread registers one piece after the other, with pauses: a
/// process that replaces a killed one waited 0.7 s for the driver without. Pieces end at
/// multiples of kPieceBytes in the address space. No copy may cross such an end: the driver refuses
/// a copy of which only a part is registered.
class PinnedRange {
 public:
  static constexpr size_t kPieceBytes = size_t{64} << 20;

  /// The memory must stay mapped until the destructor has returned. The current device must be set.
  PinnedRange(void* host, size_t bytes);
  /// Waits until the piece in work is registered, and for a pause of at most 250 ms.
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
  /// What is enqueued on `other` from now on begins after all work of this stream so far.
  void lead(cudaStream_t other);

 private:
  cudaStream_t stream_ = nullptr;
};

/// Copies between device and host memory; start() and upload() make copies that are concurrent with
/// the computation.
/// Pinned host memory is copied by the device alone; other memory by threads of this object, through
/// small pinned buffers of theirs.
class HostCopies {
 public:
  /// threads: of a copy of memory that is not pinned.
  explicit HostCopies(int threads) : threads_(std::clamp(threads, 1, kMostThreads)) {}
  /// Begins to pin this memory, unless it is pinned. If the driver refuses, logs it on stderr.
  void pin(void* host, size_t bytes) { pinned_.try_emplace(host, host, bytes); }
  void unpin(void* host) { pinned_.erase(host); }
  /// Pinned memory of at least that size, the same for the same `use` unless it must grow. Throws
  /// CudaError.
  void* reserve(size_t use, size_t bytes);
  /// Begins after all work enqueued on `after` so far, and returns at once. Throws CudaError.
  void start(cudaStream_t after, void* host, const void* device, size_t bytes);
  /// The same from, or to, host memory of reserve(). Returns what makes a stream wait for the copy.
  using Pending = std::function<void(cudaStream_t)>;
  Pending upload(cudaStream_t after, void* device, const void* host, size_t bytes);
  Pending download(cudaStream_t after, void* host, const void* device, size_t bytes);
  cudaStream_t upload_stream() const { return uploads_.get(); }
  /// Waits for the copies that start() and download() began. Throws CudaError.
  void finish();
  /// Copies after all work enqueued on `after` so far; returns when all is copied. Throws CudaError.
  void copy(cudaStream_t after, void* to, const void* from, size_t bytes, bool to_host);

 private:
  static constexpr int kMostThreads = 8;  // more are not faster
  bool is_pinned(const void* host, size_t bytes) const;

  const int threads_;
  std::map<void*, PinnedRange> pinned_;
  std::map<size_t, PinnedBuffer> reserved_;
  SideStream stream_, uploads_;           // end before the memory is unpinned
  std::mutex threads_lock_;               // copies by threads come one after the other
  std::vector<std::future<void>> begun_;  // copies by threads
};

}  // namespace simplescale::cuda
