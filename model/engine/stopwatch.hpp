// Milliseconds added up over the parts of a step, and what of them is waiting for others.
#pragma once

#include <atomic>
#include <chrono>

namespace simplescale {

/// Adds the time between its construction and its end to `ms`.
class Stopwatch {
 public:
  explicit Stopwatch(double& ms) : ms_(ms) {}
  ~Stopwatch() {
    ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
               .count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& ms_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The compute thread's waits for collectives.
struct WaitClock {
  double ms = 0;
  std::atomic<bool> waiting = false;  // inside a wait now; any thread may look
};

/// Lives as long as one wait.
class Waiting {
 public:
  explicit Waiting(WaitClock& clock) : clock_(clock), watch_(clock.ms) {
    clock_.waiting.store(true, std::memory_order_relaxed);
  }
  ~Waiting() { clock_.waiting.store(false, std::memory_order_relaxed); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  WaitClock& clock_;
  Stopwatch watch_;
};

}  // namespace simplescale
