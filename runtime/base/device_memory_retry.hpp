// Tries of what fails while a device has no free memory: the driver frees a killed process's memory
// some time after its successor has started. One object belongs to one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace simplescale {

class DeviceMemoryRetry {
 public:
  using Clock = std::chrono::steady_clock;

  explicit DeviceMemoryRetry(std::chrono::milliseconds length = std::chrono::seconds(10))
      : length_(length) {}
  /// Waits a moment and returns true; false once `length` has passed since the first call, or once
  /// `limit` has passed.
  bool again(Clock::time_point limit = Clock::time_point::max()) {
    if (end_ == Clock::time_point::max()) end_ = Clock::now() + length_;
    if (Clock::now() >= std::min(end_, limit)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return true;
  }

 private:
  std::chrono::milliseconds length_;
  Clock::time_point end_ = Clock::time_point::max();  // until the first call
};

}  // namespace simplescale
