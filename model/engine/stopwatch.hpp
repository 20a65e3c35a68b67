// Clocks for the parts of a step, and for the part of a step that is spent waiting for other ranks.
#pragma once

#include <atomic>
#include <chrono>

namespace simplescale {

/// Adds the milliseconds between its construction and its destruction to `ms`.
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

/// The time that the compute thread waits for collectives and for copies of the state.
struct WaitClock {
  double ms = 0;
  std::atomic<bool> waiting = false;  // true during a wait; any thread may read it
};

/// Counts its lifetime as one wait.
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
