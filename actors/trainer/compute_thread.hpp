// A trainer's compute thread. It joins a generation, brings its state to the agreed step, and makes
// step after step until the run ends, the ranks agree to stop or to leave, or the generation is
// fenced. The process learns which trainer it is with its first generation.
//
// The public functions are called by the trainer actor and never block on the compute thread.
// Reports leave through a function that posts to the actor.
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

#include "actors/trainer/kernel_traces.hpp"
#include "actors/trainer/restore.hpp"
#include "actors/trainer/validation.hpp"
#include "actors/trainer/warm_gpus.hpp"
#include "model/engine/engine.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/prefault.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct ComputeOptions {
  Config config;
  Plan plan;
  int threads = 1;
  /// Chooses the GPU of a trainer ("n1.0"); returns the device's index. May replace `plane` by one
  /// for that device that wraps it. Called once, on the compute thread. Empty: the CPU computes.
  std::function<Result<int>(const std::string& trainer, std::unique_ptr<DataPlane>& plane)>
      choose_device;
  /// BackendOptions::gemm_folder.
  std::string gemm_folder;
  /// Where traces of a GPU's kernels go, of the steps of metrics.trace_steps.
  std::string traces_folder;
  /// What the thread makes until its first generation: at first of the GPUs that the node's slots
  /// prefer, then see ComputeThread::prepare().
  WarmGpuOptions warm_gpus;
};

/// What the compute thread reports.
using ComputeReport = std::variant<TrainerIdle, TrainerReady, StepDone, Validated, TrainerFinished>;

class ComputeThread {
 public:
  ComputeThread(ComputeOptions options, std::unique_ptr<DataPlane> plane,
                std::function<void(ComputeReport)> report);
  /// Aborts the current generation and joins the thread.
  ~ComputeThread();
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  /// Queues the generation of `order`, to be joined when the current one has ended.
  void join(JoinTrainer order);
  /// GEN-1: aborts every generation below `generation` at once, then reports TrainerIdle.
  void fence(uint64_t generation, const std::string& reason);
  /// From now until the first generation, these GPUs are ready instead of those of
  /// ComputeOptions::warm_gpus.
  void prepare(PrepareGpus order);
  /// Makes the CPU's backend. Until then none is made, since it depends on the instructions.
  void prepare(UseInstructions order);
  /// Proposes to leave this generation after the next step. The vote makes all ranks leave.
  void leave_after_step(uint64_t generation) { leave_ = generation; }
  /// Proposes to stop training after the next step. The vote makes all ranks stop.
  void stop_after_step() { stop_ = true; }
  /// Proposes a checkpoint of the next step. The vote makes all ranks save.
  void save_after_step() { save_ = true; }
  /// Generation, step, units computed, what the thread does, and whether it waits for other
  /// processes; `trainer` is left empty. Any thread.
  TrainerProgress progress() const;
  /// Injects a fault in step `step` or the first one after it; 0: at once. Any thread.
  void inject(EngineFault fault, uint64_t step);
  /// From now on for `how_long`, each micro-batch takes so many milliseconds longer. Any thread.
  void slow_down(double ms, std::chrono::milliseconds how_long);
  /// Disturbs the links to trainers of other nodes. Any thread.
  void inject_network_fault(const NetworkFault& fault);

 private:
  struct Generation;  // what lives as long as one generation
  struct Fenced {
    uint64_t generation;
    std::string reason;
  };
  using Job = std::variant<JoinTrainer, Fenced, PrepareGpus, UseInstructions>;
  bool is_told();    // which GPUs to prepare
  bool is_needed();  // for anything else
  void run();
  Status run_generation(const JoinTrainer& order);
  void report_failure(const JoinTrainer& order, const Status& status);
  Status restore_state(Generation& g, const JoinTrainer& order, Restore& restore);
  Status join_generation(Generation& g, const JoinTrainer& order);
  void forget_pages();
  void prefault_state();
  Hash128 signature_hash() const;
  Status make_engine(Generation& g, const JoinTrainer& order);
  Status train(Generation& g, const JoinTrainer& order);
  Status finish(Generation& g, const JoinTrainer& order);
  Status open_validation();
  Status open_tasks();
  Status validate(Generation& g, const JoinTrainer& order, uint64_t step);
  Result<StepResult> step(Generation& g, const JoinTrainer& order, uint64_t step);
  double learning_rate(const JoinTrainer& order, uint64_t step) const;
  StepDone step_done(const Generation& g, const JoinTrainer& order, uint64_t step,
                     const StepResult& result, double interval_ms) const;
  Status note_fault(Generation& g, Status status);
  Result<bool> pin_if_responsible(Generation& g, const JoinTrainer& order, uint64_t step);
  void inject_delay(uint64_t generation);
  Result<Backend*> backend();
  void use_shards(int shards);
  Status choose_device(const std::string& trainer);
  void set_engine(Engine* engine);

  const ComputeOptions options_;
  std::mutex plane_mutex_;  // choose_device() may replace plane_ while another thread aborts
  std::unique_ptr<DataPlane> plane_;
  const std::function<void(ComputeReport)> report_;
  std::string trainer_;  // this trainer's name; empty before the first generation
  std::optional<int> device_index_;
  const KernelTraces kernel_traces_;
  WarmGpus warm_gpus_;
  // state_ and backend_ survive generations: mapping and pinning a large state takes seconds. The
  // engine pins it. The segment belongs to the node, and no trainer outlives its node's agent.
  std::optional<TrainState> state_;
  uint32_t cut_ = 0;  // the shards of the last generation that this trainer trained in; 0: none
  std::optional<Prefault> prefault_;
  int shards_;  // of the last generation in which it trained; at first the configured ones
  std::unique_ptr<Backend> backend_;
  Status instructions_;                       // whether this process can use those of the run
  std::vector<ValidationSource> validation_;  // opened by open_validation()
  bool validates_ = false;                    // a source of validation_ has micro-batches
  std::optional<TaskBatches> tasks_;          // opened when they are first due
  TrainerIdle idle_;                          // the report for when the current generation ends
  std::optional<HashedState> hashed_;         // of the vote that failed in this generation
  std::atomic<bool> stop_ = false, save_ = false;
  std::atomic<uint64_t> leave_ = 0, fenced_ = 0;  // generations
  std::atomic<double> slow_ms_ = 0;
  std::atomic<int64_t> slow_until_ns_ = 0;

  // For progress().
  std::atomic<uint64_t> generation_ = 0, step_ = 0, units_ = 0;
  std::atomic<int> gpu_ = -1;
  WaitClock wait_;                                  // for other processes, outside of the engine
  std::atomic<StepPhase> doing_ = StepPhase::none;  // none: see the engine
  mutable std::mutex engine_mutex_;                 // guards engine_ and faults_
  Engine* engine_ = nullptr;
  std::vector<std::pair<EngineFault, uint64_t>> faults_;  // to be injected into the next engine

  std::mutex mutex_;  // guards jobs_ and exiting_
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool exiting_ = false;
  std::thread thread_;
};

}  // namespace simplescale
