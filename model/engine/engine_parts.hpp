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

#include "model/engine/buffer_plan.hpp"
#include "model/engine/engine.hpp"
#include "model/engine/gather.hpp"
#include "model/engine/muon.hpp"
#include "model/engine/optimizer.hpp"
#include "model/engine/reduce.hpp"
#include "model/engine/stopwatch.hpp"
#include "model/engine/vote.hpp"

namespace simplescale {

inline std::string at_step(uint64_t step) {
  return "step " + std::to_string(step);
}

struct Engine::Parts {
  static constexpr uint64_t kNever = UINT64_MAX;

  Parts(const EngineOptions& o, Backend& b, Collective& s, Collective& r, TrainState& t)
      : options(o), backend(b), shard(s), replicate(r), state(t) {}

  EngineOptions options;
  Backend& backend;
  Collective& shard;
  Collective& replicate;
  TrainState& state;

  std::vector<Unit> units;
  ShardLayout layout;
  BufferPlan plan;
  uint64_t options_hash = 0;
  float leaf_scale = 1;  // 1/M
  std::optional<GatherSchedule> gather;
  std::optional<ReduceSchedule> reduce;
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

  size_t head() const { return units.size() - 1; }
  size_t layers() const { return units.size() - 2; }
  bool tied() const { return options.shape.tie_embeddings; }
  /// The gathered units, if AdamW writes them with the parameters; else null.
  void* updated_units() const { return muon ? nullptr : gather->whole(); }

  Status create();
  Status create_optimizer();
  void deal(uint64_t leaves);
  uint64_t group() const { return static_cast<uint64_t>(replicate.rank()); }
  /// Leaves of this rank in a step.
  uint64_t own_leaves() const { return shares.count(group(), static_cast<uint64_t>(shard.rank())); }
  void load();
  Status end(Status error);
  void at(StepPhase phase, int64_t block = -1) {
    activity.store((block + 1) << 8 | static_cast<int64_t>(phase), std::memory_order_relaxed);
  }
  Status unit_computed();
  bool take_fault(EngineFault fault);
  void flip_gradient_bit();
  void note_hash(const Hash128& hash);
  Status check_unchanged(const Hash128& current_hash);
  void finish_store();

  Result<const void*> forward(const int32_t* tokens, size_t after_head, const void** tied_params);
  Result<double> backward(int k, bool has_leaf, const void* head_params, const void* tied_params);

  // The parts of step(), in order.
  Ballot begin_step(uint64_t step, float learning_rate, const StepControl& mine);
  Status accumulate_gradients(const Batch& batch, Ballot& ballot, StepResult& times);
  Status check_committed_state(Ballot& ballot);
  Status finish_reductions(Ballot& ballot, StepResult& times);
  Result<Verdict> vote_on(const Ballot& ballot, StepResult& times);
  double over_trained(const Verdict& verdict) const;
  Status apply(float learning_rate, double grad_norm, double over_trained);
  Status commit();
};

}  // namespace simplescale
