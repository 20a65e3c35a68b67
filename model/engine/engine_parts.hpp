// What an Engine consists of, and the parts of a step in their order. Included by engine.cpp and
// engine_parts.cpp only.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "model/engine/engine.hpp"
#include "model/engine/gather.hpp"
#include "model/engine/muon.hpp"
#include "model/engine/optimizer.hpp"
#include "model/engine/reduce.hpp"
#include "model/engine/stopwatch.hpp"
#include "model/engine/token_exchange.hpp"
#include "model/engine/vote.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/program/buffer_plan.hpp"
#include "runtime/program/program.hpp"

namespace simplescale {

inline std::string at_step(uint64_t step) {
  return "step " + std::to_string(step);
}

struct Engine::Parts {
  static constexpr uint64_t kNever = UINT64_MAX;

  Parts(const EngineOptions& o, Backend& b, Axes a, TrainState& t)
      : options(o), backend(b), axes(std::move(a)), state(t) {}

  EngineOptions options;
  Backend& backend;
  const Axes axes;
  Collective& shard = members_of(axes, kShardAxis);
  Collective& replicate = members_of(axes, kReplicateAxis);
  TrainState& state;

  std::vector<Unit> units;
  ShardLayout layout;
  BufferPlan plan;
  Hash128 layout_of_step;
  bool layout_agreed = false;  // all ranks have the same
  float leaf_scale = 1;        // 1/M
  ProgramOptions order;        // of the current step
  Program step_tasks, loss_tasks;
  std::optional<GatheredUnits> gathered;
  std::optional<GradientSums> sums;
  std::optional<TokenExchange> exchange;  // if experts are resident
  std::optional<ShardOptimizer> optimizer;
  std::optional<MuonSchedule> muon;  // if options.optimizer is muon
  std::optional<Vote> vote;
  std::optional<Mismatch> mismatch;
  std::optional<HashedState> hashed;
  std::optional<int> suspect;
  std::string cause;
  bool damaged = false;
  Shares shares;                            // of the current step
  std::vector<int32_t> placeholder_tokens;  // (B, T + 1): used when batch() has failed

  Status ended;              // not ok: the error that finished this engine
  uint64_t newest_step = 0;  // the newest step that has begun
  WaitClock wait;
  std::atomic<uint64_t> fault_step[3] = {kNever, kNever, kNever};  // by EngineFault
  std::atomic<uint64_t> progress = 0;
  std::atomic<int64_t> activity = 0;  // block + 1, then 8 bits for the phase
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::string abort_reason;  // guarded by mutex

  bool tied() const { return options.shape.tie_embeddings; }
  /// The gathered units, or those to be uploaded, if AdamW writes them with the parameters; else
  /// null.
  void* updated_units() const {
    if (plan.through_host) return gathered->to_upload();
    return muon ? nullptr : gathered->whole();
  }

  Status create();
  Status create_optimizer();
  void deal(uint64_t leaves);
  uint64_t group() const { return static_cast<uint64_t>(replicate.rank()); }
  /// True if this rank has that micro-batch. In the step's last turn it may have none.
  bool has_leaf(int micro_batch) const {
    return static_cast<uint64_t>(micro_batch) <
           shares.count(group(), static_cast<uint64_t>(shard.rank()));
  }
  void load();
  Status end(Status error);
  void at(StepPhase phase, int64_t block = -1) {
    activity.store((block + 1) << 8 | static_cast<int64_t>(phase), std::memory_order_relaxed);
  }
  Status unit_computed();
  bool take_fault(EngineFault fault);
  void flip_gradient_bit(float* gradient);
  void note_hash(const Hash128& hash);
  Status check_unchanged(const Hash128& current_hash);
  void finish_store();

  /// What the tasks of a step share.
  struct Run {
    const Batch& batch;
    float learning_rate = 0;
    Ballot ballot = {};
    StepResult result = {};
    const int32_t* tokens = nullptr;  // of the micro-batch that begins
    trace::Span turn = {};
    bool loss_only = false;   // every rank computes its own tokens' loss
    double over_trained = 1;  // ENGINE-7
    bool all_agree = false;   // every rank returns this error: the engine can be used again
    double other_ms = 0;
    double* time = &other_ms;
  };
  Status agree_on_layout(Run& r);
  /// Executes the tasks in order, up to the first error.
  Status run(const Program& program, Run& r);
  Status execute(const Task& task, Run& r);

  // The parts of execute().
  static double& time_of(const Task& task, Run& r);
  double& compute_time(Run& r) const;
  Status read_tokens(int micro_batch, Run& r);
  Status compute(const Task& task, Run& r);
  Status compute_resident(const Task& task, Run& r, const void* params, const void* block,
                          void* grad, bool has_tokens);
  void record(const Task& task, Run& r);
  Status check_committed_state(Ballot& ballot);
  Status finish_sums(Ballot& ballot);
  void balance_routers(std::span<const int64_t> counts, float* gradient);
  float* gradient_of_update();
  Status hold_vote(Run& r);
  Status update(Run& r);
  Status commit();

  Ballot begin_step(uint64_t step, float learning_rate, const StepControl& mine);
  double over_trained(const Verdict& verdict) const;
};

}  // namespace simplescale
