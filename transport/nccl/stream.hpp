// A CUDA stream that is only polled, so that every wait has a deadline and can be aborted.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/status.hpp"

namespace simplescale::nccl {

using Clock = std::chrono::steady_clock;

/// Code::unavailable with expression, file and line: a failed device stays failed.
Status cuda_status(cudaError_t error, const char* expression, const char* file, int line);
#define SS_CUDA_STATUS(expression) \
  ::simplescale::nccl::cuda_status((expression), #expression, __FILE__, __LINE__)

/// Calls done() until it returns true or an error. Code::deadline without a message at `limit`.
/// Yields between the calls for 100 us, then sleeps 20 to 200 us.
template <class Done>
Status poll(Clock::time_point limit, Done done) {
  const auto begun = Clock::now();
  auto pause = std::chrono::microseconds(20);
  for (;;) {
    SS_ASSIGN(const bool is_done, done());
    if (is_done) return {};
    const auto now = Clock::now();
    if (now >= limit) return Status(Code::deadline, "");
    if (now - begun < std::chrono::microseconds(100)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      if (pause < std::chrono::microseconds(200)) pause *= 2;
    }
  }
}

/// A point on a stream.
class Event {
 public:
  /// The point after all work queued on `stream` so far.
  static Result<Event> record(cudaStream_t stream);
  /// True once the stream has passed it. Code::unavailable: the device failed.
  Result<bool> done() const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;
  explicit Event(Handle event) : event_(std::move(event)) {}
  Handle event_;
};

/// A stream on one device, which does not synchronize with the default stream.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(int device_index);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t handle() const { return stream_; }
  int device_index() const { return device_index_; }
  /// Later work on this stream waits, on the device, for all work queued on `other` so far. Null:
  /// does nothing.
  Status after(cudaStream_t other) const;
  /// Waits for all work queued so far.
  Status finish(Clock::time_point limit) const;
  /// Zeroed device memory. If there is too little, waits for more, at most 10 s: the driver takes
  /// time to free the memory of a killed process. Code::io names the size.
  Result<void*> allocate(size_t bytes, Clock::time_point limit) const;

 private:
  explicit Stream(int device_index) : device_index_(device_index) {}
  int device_index_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t other_ = nullptr;  // recorded on the stream that after() waits for
};

}  // namespace simplescale::nccl
