// The own shard's parameters and moments: where they live, their update and their commit.
//
// Host memory: the state's committed side is the master copy, the update writes the other side.
// Device memory: the master copy is on the device, and the other side receives a copy of it beside
// the next step's computation (engine.hpp, ENGINE-6). Runs on the compute thread.
#pragma once

#include <vector>

#include "model/backend.hpp"
#include "model/engine/buffer_plan.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/train_state.hpp"

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
  /// The step of the master copy.
  uint64_t step() const { return device_ ? step_ : state_->step(); }
  /// state_hash() of the master copy, made now: what replicas compare in a vote.
  Hash128 whole_hash() const;
  /// The same of what lies in host memory; not while a copy is under way.
  Hash128 copy_hash() const;
  /// STATE-2: whether that is what was committed. whole_hash: of now.
  bool intact(const Hash128& whole_hash) const;
  /// gradient: the own shard's total, fp32, device memory. Writes the new state and commits it as
  /// options.step, with its hash: in host memory at once, with device memory in settle(). deadline
  /// if a reader keeps the other side; then nothing was changed. mismatch: only with check_source
  /// and in host memory, the state before was not intact while it was read; nothing is committed
  /// then.
  Status apply(const AdamW& options, const float* gradient, int state_timeout_ms,
               bool check_source);
  /// Device memory: waits for the copy under way, if any, and commits it in host memory. STATE-1: until
  /// then that side holds no step, so who dies before leaves the step before.
  Status settle();

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
  // With device memory:
  uint64_t step_ = 0;     // of what device_ holds
  Hash128 hash_;          // its state_hash() when it was made; zero: not known
  bool copying_ = false;  // it is on its way to host memory
};

}  // namespace simplescale
