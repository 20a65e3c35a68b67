// A CUDA stream that is only ever polled: every wait has a deadline and a way to be called off.
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

/// unavailable with expression, file and line: a device that fails stays so.
Status cuda_status(cudaError_t error, const char* expression, const char* file, int line);
#define SS_CUDA_STATUS(expression) \
  ::simplescale::nccl::cuda_status((expression), #expression, __FILE__, __LINE__)

/// Asks done() until it says true or fails; Code::deadline without a message at `limit`. Looks
/// busily for a while, then every 20 to 200 us.
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
  /// What `stream` has been given so far.
  static Result<Event> record(cudaStream_t stream);
  /// unavailable: the device failed.
  Result<bool> done() const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;
  explicit Event(Handle event) : event_(std::move(event)) {}
  Handle event_;
};

/// A stream of its own on one device, which does not wait for the default stream.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(int device_index);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t handle() const { return stream_; }
  int device_index() const { return device_index_; }
  /// What this stream is given from now on waits, on the device, for what `other` has been given so
  /// far; null: for nothing.
  Status after(cudaStream_t other) const;
  /// Waits for everything so far.
  Status finish(Clock::time_point limit) const;
  /// Zeroed device memory. While there is too little it waits for some, at most 10 s: a killed
  /// process's memory comes back when the driver has cleaned up after it. Code::io names the size.
  Result<void*> allocate(size_t bytes, Clock::time_point limit) const;

 private:
  explicit Stream(int device_index) : device_index_(device_index) {}
  int device_index_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t other_ = nullptr;  // where the stream was that this one follows
};

}  // namespace simplescale::nccl
