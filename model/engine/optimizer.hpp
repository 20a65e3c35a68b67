// The own shard's parameters and moments: where they live, their update and their commit.
//
// Host memory: the state's committed side is the master copy, the update writes the other side.
// Device memory: the master copy is on the device, and the state receives a copy after every
// update. Runs on the compute thread.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "runtime/base/collective.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/train_state.hpp"

namespace simplescale {

/// The shard's elements [0, layout.total) as runs of one kind of decay: matrices decay, norms and
/// padding do not.
std::vector<DecayRun> decay_runs(const std::vector<Unit>& units, const ShardLayout& layout,
                                 size_t shard);

class ShardOptimizer {
 public:
  static Result<ShardOptimizer> create(const BufferPlan& plan, std::vector<DecayRun> runs,
                                       size_t total, Backend& backend, Collective& shard,
                                       TrainState& state);
  /// Picks up the committed side.
  void load();
  /// The committed parameters of the own shard, fp32, device memory; valid until the next load() or
  /// apply().
  const float* params() const { return params_; }
  /// What replicas compare in a vote. Host memory: whole_hash(). Device memory, whose copy in host
  /// memory one host thread cannot hash in no time: of one sixteenth, another one every step.
  Hash128 hash_for_vote() const;
  /// Of the whole committed state.
  Hash128 whole_hash() const;
  /// S7: whether the committed state is what was committed. whole_hash: of now. In device memory
  /// nobody knows: the copies in host memory carry no hash.
  bool intact(const Hash128& whole_hash) const;
  /// gradient: the own shard's total, fp32, device memory. Writes the new state and commits it as
  /// options.step, in host memory with its hash. deadline if a reader keeps the other side; then
  /// nothing was changed. mismatch: only with check_source, the state before was not intact while
  /// it was read; nothing is committed then.
  Status apply(const AdamW& options, const float* gradient, int state_timeout_ms,
               bool check_source);

 private:
  ShardOptimizer(std::vector<DecayRun> runs, size_t total, Backend& backend, TrainState& state)
      : runs_(std::move(runs)), total_(total), backend_(&backend), state_(&state) {}

  Hash128 hash_of(const TrainState::Side& side) const;

  std::vector<DecayRun> runs_;
  size_t total_;
  Backend* backend_;
  TrainState* state_;
  const float* params_ = nullptr;
  float* device_ = nullptr;  // params, exp_avg, exp_avg_sq; null in host memory
};

}  // namespace simplescale
