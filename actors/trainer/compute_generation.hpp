// What compute_thread.cpp, which joins generations, and compute_steps.cpp, which makes their steps,
// have in common.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "actors/trainer/batch_reader.hpp"
#include "actors/trainer/compute_thread.hpp"
#include "runtime/feed/sample_order.hpp"

namespace simplescale {

/// Names what the compute thread does outside of a step, for its lifetime.
class Doing {
 public:
  Doing(std::atomic<StepPhase>& what, StepPhase phase) : what_(what) { what_ = phase; }
  ~Doing() { what_ = StepPhase::none; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  std::atomic<StepPhase>& what_;
};

/// Everything of one generation. Members are destroyed in reverse order: the engine uses the rest.
struct ComputeThread::Generation {
  std::vector<std::unique_ptr<Collective>> communicators;  // of the axes
  Axes axes;
  TrainState* state = nullptr;
  std::optional<BatchReader> batches;
  BatchLayout layout;
  std::unique_ptr<Engine> engine;
  uint64_t step = 0;  // committed
  std::chrono::steady_clock::time_point step_began;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  double joined_ms = 0, restored_ms = 0;  // after `begun`

  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun)
        .count();
  }
};

}  // namespace simplescale
