// A trainer's compute thread: joins a generation, brings its state to the agreed step, and makes
// step after step until the run ends, a stop is agreed, or the generation is aborted.
//
// The trainer actor gives orders from its own thread; reports go back through a function that posts
// to the actor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "model/engine/engine.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/data/token_ring.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct ComputeOptions {
  std::string trainer;
  Config config;
  Plan plan;
  TrainerPlace place;
  int threads = 1;
  std::optional<int> device_index = std::nullopt;  // none: the CPU computes
};

/// Shared memory that the trainer's collectives need: what its engine takes at most over all
/// numbers of groups up to the configured, and room for alignment. host_memory: the backend's; a
/// GPU's engine takes more (see BufferPlan).
size_t arena_bytes(const Config& config, const Plan& plan, bool host_memory);

/// What the compute thread reports.
using ComputeReport = std::variant<TrainerIdle, StepDone, Validated, TrainerFinished>;

class ComputeThread {
 public:
  ComputeThread(ComputeOptions options, std::unique_ptr<DataPlane> plane,
                std::function<void(ComputeReport)> report);
  /// Aborts what it does and joins the thread.
  ~ComputeThread();
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  std::vector<uint8_t> address() const { return plane_->address(); }
  void join(JoinTrainer order);
  /// Leaves every generation below `generation` at once, then reports TrainerIdle.
  void fence(uint64_t generation, const std::string& reason);
  /// Proposes to stop after the next step; all ranks then agree on it.
  void stop_after_step() { stop_ = true; }

 private:
  struct Generation;  // what lives as long as one membership
  struct Fenced {
    uint64_t generation;
    std::string reason;
  };
  using Job = std::variant<JoinTrainer, Fenced>;
  void run();
  Status run_generation(const JoinTrainer& order);
  Status restore(Generation& g, const JoinTrainer& order);
  Status train(Generation& g, const JoinTrainer& order);
  Status validate(Generation& g, const JoinTrainer& order, uint64_t step);
  Result<StepResult> step(Generation& g, const JoinTrainer& order, uint64_t step);
  bool saves() const;
  Result<bool> keep_for_checkpoint(Generation& g, uint64_t step);
  Result<Backend*> backend();

  const ComputeOptions options_;
  std::unique_ptr<DataPlane> plane_;
  const std::function<void(ComputeReport)> report_;
  std::unique_ptr<Backend> backend_;  // made once: it survives generations
  std::optional<Dataset> dataset_;
  std::atomic<bool> stop_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool exiting_ = false;
  std::thread thread_;
};

}  // namespace simplescale
