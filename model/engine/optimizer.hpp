// This rank's shard of the state: where its parts are stored, their update and commit.
//
// Host memory: the state's committed side is the master copy; the update writes the other side, also
// if a device with memory of its own computes with it (EngineOptions::state_in_host).
// Device memory: the master copy is on the device and is updated in place; start_store() copies it
// to the state's other side while the next step is computed (engine.hpp, ENGINE-6). All calls come
// from the compute thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/stopwatch.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/program/buffer_plan.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/muon_plan.hpp"
#include "runtime/training/parameter_groups.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Splits the shard's elements [0, layout.total) into runs that are treated alike: with the rates
/// of rates_of(), and with Muon where it updates them. Padding does not decay. A router's bias moves by
/// router_bias_rate, if that is above 0.
std::vector<ParameterRun> parameter_runs(const std::vector<Unit>& units, const ShardLayout& layout,
                                         size_t shard, std::span<const ParameterGroup> groups,
                                         float weight_decay, Optimizer optimizer = Optimizer::adamw,
                                         float router_bias_rate = 0);

/// The state that an update reads and the state that it writes; both the same in device memory.
/// (total) each; the moments fp32 or bf16, all others fp32.
struct StateUpdate {
  const float* from_params;
  const void *from_avg, *from_avg_sq;
  const float* from_ema;
  float* to_params;
  void *to_avg, *to_avg_sq;
  float* to_ema;  // both null if the state has no average
  DType moments;
};

class ShardOptimizer {
 public:
  static Result<ShardOptimizer> create(const BufferPlan& plan, std::vector<ParameterRun> runs,
                                       size_t total, const EngineOptions& options, Backend& backend,
                                       Collective& shard, TrainState& state);
  /// Loads the state's committed side.
  void load();
  /// This shard's committed parameters: (total) fp32, where the state is. Valid until the next load() or
  /// commit(); null before the first load().
  const float* params() const { return params_; }
  /// The step of the master copy.
  uint64_t step() const { return on_device() ? step_ : state_->step(); }
  /// Begins current_hash(). Device memory: beside the calls that follow, until commit(); waits for
  /// the hash that commit() began.
  void start_hash();
  /// state_hash() of the master copy, what replicas compare in a vote: as start_hash() began it, or
  /// computed now in host memory.
  Hash128 current_hash();
  /// state_hash() of the committed side in host memory, computed now. Not while a copy is in
  /// progress.
  Hash128 host_hash() const;
  /// STATE-2: true if `current_hash` equals the hash stored at commit, or if none was stored.
  bool matches_commit(const Hash128& current_hash) const;
  /// Before apply(). Host memory: waits until no reader pins the side to be written. deadline: a
  /// reader pins it for longer; nothing was changed. Device memory: no copy may be in progress.
  Status begin_write(int state_timeout_ms, WaitClock& wait);
  /// Writes the state after options.step, except for the runs that Muon updates; commit() must
  /// follow. gradient: (total) fp32; rounded: as Backend::adamw(); both where the state is. written:
  /// if given, called several times with the number of elements that are written, at last with all.
  using Written = std::function<void(size_t elements)>;
  void apply(const AdamW& options, const float* gradient, void* rounded,
             const Written& written = nullptr);
  /// What apply() read and wrote. Until commit().
  StateUpdate update() const;
  /// After all parameters are written: the average, if there is one, moves towards them
  /// (Backend::average()).
  void average();
  /// Commits what apply() wrote, with its hash. Host memory: at once. Device memory: on the device
  /// only, and starts the hash. mismatch: only in host memory; the state that apply() read is not
  /// what was committed. Nothing is committed then.
  Status commit();
  /// Device memory: starts to copy what was committed to host memory, unless that is done or the
  /// device holds a part of a step. deadline: a reader pins the side to be written for timeout_ms.
  Status start_store(int timeout_ms, WaitClock& wait);
  /// Waits for the hash and the copy in progress, if any, and commits in host memory. Only the copy
  /// counts as a wait: it may be slow, but a hash that does not end is a GPU that hangs. STATE-1:
  /// until then the written side holds no step, so a rank that dies leaves the step that was stored
  /// before.
  void finish_store(WaitClock& wait);

 private:
  ShardOptimizer(std::vector<ParameterRun> runs, size_t total, const EngineOptions& options,
                 Backend& backend, TrainState& state);

  bool on_device() const { return !device_.params.empty(); }
  Hash128 hash_of(const TrainState::Side& side) const;
  void settle_hash();

  std::vector<ParameterRun> runs_;
  size_t total_;
  DType precision_;
  float average_weight_;  // 0: the state has no average
  bool updates_all_;      // no run is Muon's
  Backend* backend_;
  TrainState* state_;
  const float* params_ = nullptr;
  TrainState::Side device_;  // all parts; empty in host memory
  // Between begin_write() and commit():
  TrainState::Side from_, to_;
  uint64_t applied_step_ = 0;
  struct Hashes {
    Hash128 from, to;
  };
  std::optional<Hashes> hashed_;  // by apply(), in host memory
  // With device memory:
  uint64_t step_ = 0;             // of what device_ holds
  Hash128 hash_;                  // state_hash() of device_ when it was made; zero: not known
  bool unstored_ = false;         // device_ holds all of step_, host memory does not
  bool copying_ = false;          // the copy of device_ to host memory is in progress
  Backend::PendingHash made_;     // becomes hash_
  Backend::PendingHash current_;  // begun by start_hash()
};

}  // namespace simplescale
