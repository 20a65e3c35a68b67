// The training engine: one optimizer step of one shard, from parameters to parameters.
//
// It owns the order of things (what is gathered, computed and reduced when) and its buffers;
// mathematics is the Backend's, communication the Collectives', memory of the state the
// TrainState's. The compute thread makes all calls but abort(), progress(), waiting() and inject().
// Batches come as pointers, results go as values: no files, no clocks but for the breakdown, no
// logging of steps.
//
// ENGINE-1. Until every rank of the world has voted for a step, nothing of it is written but to buffers.
//
// ENGINE-2. The side of the state that holds step N - 1 is overwritten only after a vote for step N + 1
// in which all took part, so a step that some ranks committed and others did not can be undone
// (TrainState::rewind). So can a committed step N whose replicas turn out to differ (ENGINE-4): the vote
// that finds it is the one for N + 1, and it fails.
//
// ENGINE-3. The state after a step has the same bits for every layout (groups, shards) of the same
// leaves, whether or not the groups train equally many.
//
// ENGINE-4. Replicas whose states of step N differ in any bit find out in the vote for step N + 1, or in
// compare_states() where there is none: they compare a 128-bit hash of all of it, made right before
// the vote. Nobody commits N + 1 then.
//
// ENGINE-5. A committed state of which a bit changes in memory is found by its own rank before the vote
// for the next step, also without replicas: it is held against the hash made when it was committed.
// Nobody commits the next step then. In host memory, without replicas, it is held against it once
// more after the next state has been made of it: that one is not committed by its rank.
//
// ENGINE-6. With device memory the state of step N lies on the device when step() returns, and is being
// copied to host memory while step N + 1 is computed. The vote for N + 1 waits for the copy, so ENGINE-2
// holds for the two sides in host memory. Whoever dies during the copy leaves N - 1 there; N is
// made again then, unless a replica has it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/backend.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// S = shard.size() trainers a group, G = replicate.size() groups; M = K * S leaves a step, of
/// which group g computes the rows rows_of_group(K, G, g) (sharding.hpp).
struct EngineOptions {
  ModelShape shape;
  DType precision = DType::f32;  // as the backend's
  int micro_batch_size = 1;      // B, as the backend's
  int rows = 1;                  // K: of a step, over all groups; at least G
  Sharding sharding = Sharding::full_shard;
  /// Sums in tree order cost no more than others here: both values take the same path and give the
  /// same bits.
  bool deterministic = true;
  float grad_clip = 1.0f;  // 0: no clipping
  float weight_decay = 0.1f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  uint64_t seed = 1;              // of the initial values
  int state_timeout_ms = 60'000;  // how long a reader may keep the side that is to be written
};

/// Wishes of one rank; the vote ORs them over the world, so that all ranks do the same after the
/// same step.
struct StepControl {
  bool stop = false;   // leave after this step
  bool save = false;   // write a checkpoint of this step
  bool pause = false;  // wait before the next step
  bool operator==(const StepControl&) const = default;
};

struct StepResult {
  double loss = 0;  // mean nats per token over the global batch, before the update; the same bits
                    // on every rank
  double grad_norm = 0;  // before clipping; the same bits on every rank
  StepControl agreed;
  Hash128 state_hash;  // of the own shard of the state before the step, as compared among replicas;
                       // zero with one group
  double step_ms = 0;  // all of step(); the five below are parts of it
  double data_ms = 0;  // inside batch()
  double forward_ms = 0, backward_ms = 0, optimizer_ms = 0;
  double wait_ms = 0;  // waiting for collectives
};

/// Replicas of a shard that do not hold the same bits.
struct Mismatch {
  uint64_t step = 0;  // whose state
  int shard = 0;
  std::vector<Hash128> of_group;  // G
  std::optional<Hash128> right;   // what more than half of the groups hold, if any
  /// Groups that are outvoted; empty without a majority.
  std::vector<int> wrong() const;
  Status status() const;  // Code::mismatch, says all of this
};

/// Faults for tests and drills.
enum class EngineFault : unsigned char {
  bitflip_gradient,  // the highest mantissa bit of one element of the own total, after the vote
  nan_loss,          // the loss of the step's first micro-batch is not a number
  hang,              // the compute thread stops for ever, deaf to abort()
};

class Engine {
 public:
  /// shard: the group's communicator, rank = shard index. replicate: same shard index across
  /// groups, rank = group. All four must outlive the engine. bad_config if the options, the
  /// communicators and the state do not fit together.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, Backend& backend,
                                                Collective& shard, Collective& replicate,
                                                TrainState& state);
  ~Engine();

  /// Initial values of the own shard, committed as step 0: norms one, matrices normal(0, 0.02),
  /// each value a function of seed, tensor and element alone.
  Status initialize();

  /// Picks up the committed side after a restore, a rewind or a restart; returns its step.
  /// not_found without one.
  Result<uint64_t> attach();

  /// tokens of accumulation k: (B, T + 1) int32, valid until the next call or the end of the step.
  /// May wait.
  using Batch = std::function<Result<const int32_t*>(int k)>;

  /// Makes step `step` (1-based, the one after the committed) and commits it. Accumulation k is
  /// leaf leaf(k) of the step. Errors, all with the committed state as it was:
  ///   bad_data  the loss or the norm is not finite (every rank says so)
  ///   mismatch  replicas differ in the committed state (mismatch() tells), or in the gradient's
  ///             norm, or a rank's memory has changed (damaged()); every rank says so
  ///   any code  a rank's batch() failed, or ranks disagree on step, options or norm (every rank
  ///   says which and why) aborted, deadline, unavailable  of a collective, or batch() ended with
  ///   aborted: this engine and its communicators
  ///             are finished (both are aborted), make new ones. After the other errors it can be
  ///             used again.
  Result<StepResult> step(uint64_t step, float learning_rate, const StepControl& mine,
                          const Batch& batch);

  /// Mean loss in nats of this rank's micro-batch (tokens as above). All ranks of the group must
  /// call it together.
  Result<double> loss(const int32_t* tokens);

  /// After the last step, which no vote follows: replicas compare the committed state. All ranks of
  /// the world must call it together; all get the same code. mismatch: as in step(); internal:
  /// ranks hold different steps. An error of a collective ends this engine.
  Status compare_states();
  /// Waits until the newest state is in host memory, where its side can be pinned; step() and the
  /// end of the engine do it, too. At once without device memory, or after compare_states().
  Status settle();
  /// The last step() or compare_states() found that the own committed state is not what was
  /// committed (ENGINE-5). It should be forgotten.
  bool damaged() const;
  /// How the replicas differ, if the last step() or compare_states() ended with Code::mismatch
  /// because of their states.
  const std::optional<Mismatch>& mismatch() const;

  /// Micro-batches of this trainer a step.
  int accumulation() const;
  /// m = (first row of the group + k) * S + shard: its samples are m * B ... m * B + B - 1 of the
  /// step.
  uint64_t leaf(int k) const;
  /// Bytes of the buffers this engine took from the two communicators.
  size_t buffer_bytes() const;

  /// step() and loss() end with Code::aborted soon. Any thread.
  void abort(const std::string& reason);
  /// Grows with every unit computed: the watchdog's proof of life. Any thread.
  uint64_t progress() const;
  /// The compute thread is inside a collective's wait: if progress() stands still, others are late.
  /// Any thread.
  bool waiting() const;
  /// The fault happens once, in the first step from `step` on. Any thread.
  void inject(EngineFault fault, uint64_t step);

 private:
  struct Parts;
  explicit Engine(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace simplescale
