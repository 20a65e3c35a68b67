// A trainer's compute thread: joins a generation, brings its state to the agreed step, and makes
// step after step until the run ends, a stop or a change of layout is agreed, or the generation is
// aborted. Which trainer its process is, it learns with the first generation.
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
#include <vector>

#include "actors/trainer/restore.hpp"
#include "model/engine/engine.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/data/token_ring.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct ComputeOptions {
  Config config;
  Plan plan;
  int threads = 1;
  /// Where a trainer ("n1.0") computes: given once, on the compute thread, its plane, which may be
  /// put around a device's; returns the device's index. Without it the CPU computes.
  std::function<Result<int>(const std::string& trainer, std::unique_ptr<DataPlane>& plane)>
      choose_device;
};

/// Shared memory that the trainer's collectives need: what its engine takes at most over all
/// numbers of groups up to the configured, and room for alignment. host_memory: the backend's; a
/// GPU's engine takes more (see BufferPlan).
size_t arena_bytes(const Config& config, const Plan& plan, bool host_memory);

/// What the compute thread reports.
using ComputeReport = std::variant<TrainerIdle, TrainerReady, StepDone, Validated, TrainerFinished>;

class ComputeThread {
 public:
  ComputeThread(ComputeOptions options, std::unique_ptr<DataPlane> plane,
                std::function<void(ComputeReport)> report);
  /// Aborts what it does and joins the thread.
  ~ComputeThread();
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  void join(JoinTrainer order);
  /// Leaves every generation below `generation` at once, then reports TrainerIdle.
  void fence(uint64_t generation, const std::string& reason);
  /// Proposes to leave this generation after the next step; all ranks then agree on it.
  void leave_after_step(uint64_t generation) { leave_ = generation; }
  /// Proposes to stop after the next step; all ranks then agree on it.
  void stop_after_step() { stop_ = true; }
  /// Proposes a checkpoint of the next step; all ranks then agree on it.
  void save_after_step() { save_ = true; }
  /// How far it is; `trainer` is left empty. Any thread.
  TrainerProgress progress() const;
  /// A fault on purpose: now if step is 0, else in that step or the first after it.
  void inject(EngineFault fault, uint64_t step);
  /// Sleeps for this fraction of each step's time, so long. Any thread.
  void slow_down(double fraction, std::chrono::milliseconds how_long);
  /// The links to trainers of other nodes. Any thread.
  void inject_network_fault(const NetworkFault& fault);

 private:
  struct Generation;  // what lives as long as one membership
  struct Fenced {
    uint64_t generation;
    std::string reason;
  };
  using Job = std::variant<JoinTrainer, Fenced>;
  void run();
  Status run_generation(const JoinTrainer& order);
  Status enter(Generation& g, const JoinTrainer& order);
  Status make_engine(Generation& g, const JoinTrainer& order);
  Status train(Generation& g, const JoinTrainer& order);
  Status finish(Generation& g, const JoinTrainer& order);
  Status validate(Generation& g, const JoinTrainer& order, uint64_t step);
  Result<MicroBatch> tokens(Generation& g, const JoinTrainer& order, const BatchKey& key);
  Result<StepResult> step(Generation& g, const JoinTrainer& order, uint64_t step);
  StepDone step_done(const JoinTrainer& order, uint64_t step, const StepResult& result) const;
  Status blame_state(Generation& g, Status status);
  Result<bool> keep_for_checkpoint(Generation& g, const JoinTrainer& order, uint64_t step);
  void inject_delay(double step_ms);
  Result<Backend*> backend();
  Status settle(const std::string& trainer);
  void set_engine(Engine* engine);

  const ComputeOptions options_;
  std::mutex plane_mutex_;  // the plane may be put around while another thread aborts
  std::unique_ptr<DataPlane> plane_;
  const std::function<void(ComputeReport)> report_;
  std::string trainer_;  // who this is; empty while nobody has said
  std::optional<int> device_index_;
  // The next two survive generations: to map and to pin a large state takes seconds. Its segment is
  // the node's, and no trainer outlives its node's agent.
  std::optional<TrainState> state_;
  std::unique_ptr<Backend> backend_;
  void* pinned_ = nullptr;  // of state_, for the backend
  std::optional<Dataset> dataset_;
  TrainerIdle fault_;  // of the generation that ends: fault, step and suspect
  std::atomic<bool> stop_ = false, save_ = false;
  std::atomic<uint64_t> leave_ = 0, fenced_ = 0;  // generations
  std::atomic<double> slow_fraction_ = 0;
  std::atomic<int64_t> slow_until_ns_ = 0;

  // How far it is, for progress().
  std::atomic<uint64_t> generation_ = 0, step_ = 0, units_ = 0;
  std::atomic<bool> waiting_ = false;  // for others, outside of the engine
  mutable std::mutex engine_mutex_;    // the next two
  Engine* engine_ = nullptr;
  std::vector<std::pair<EngineFault, uint64_t>> faults_;  // to be given to the next engine

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool exiting_ = false;
  std::thread thread_;
};

}  // namespace simplescale
