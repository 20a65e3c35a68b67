// The training engine: makes one optimizer step of one shard.
//
// The engine owns the order of a step (what is gathered, computed and reduced when) and its
// buffers. The Backend does the mathematics, the two Collectives the communication, and the
// TrainState holds the state in shared memory. The compute thread makes all calls; only abort(),
// progress(), waiting(), activity() and inject() may come from any thread. The engine reads and
// writes no files, logs no steps and reads a clock only for the time breakdown.
//
//   ENGINE-1  Until every rank of the world has voted for a step, the step is written to buffers
//             only.
//   ENGINE-2  The side of the state that holds step N - 1 is overwritten only after a vote for
//             step N + 1 in which every rank took part. So a step that some ranks committed and
//             others did not can be undone (TrainState::rewind). A committed step N whose replicas
//             differ (ENGINE-4) can be undone too: the vote that detects it is the one for N + 1,
//             and that vote fails. With device memory and memory_every_steps != 1, the two sides
//             hold the last two steps that were stored, and what is undone may be more steps.
//   ENGINE-3  The state after a step has the same bits for every layout (groups, shards, waves)
//             of the same leaves, whether or not all trainers have the same number of them (JOB-6).
//   ENGINE-4  Replicas whose states of step N differ in any bit detect it in the vote for step
//             N + 1, or in compare_states() after the last step: they compare a 128-bit hash of the
//             whole state. It is computed immediately before the vote; in device memory it begins
//             with the step's last backward pass of a block, and runs beside it. No rank then
//             commits N + 1.
//   ENGINE-5  A rank whose committed state has changed in memory detects it before the vote for the
//             next step, also without replicas: it compares the state's hash with the hash stored
//             at commit. No rank then commits the next step. In host memory the rank compares the
//             hash once more after it has made the next state, so that a state that changes after
//             the vote is detected, too; on a difference it does not commit the next state.
//   ENGINE-6  With device memory, step() returns when all work that makes the state of step N is
//             enqueued. The state is hashed and copied to host memory while step N + 1 is
//             computed. The vote for N + 1 waits for both, so ENGINE-2 holds for the two sides in
//             host memory. A rank that dies during the copy leaves N - 1 in host memory; step N is
//             then made again, unless a replica has it. EngineOptions::memory_every_steps says
//             which steps are copied; the end of an engine copies the newest one, unless it is
//             damaged or replicas differ in it.
//   ENGINE-7  Loss and gradient of a step are means over the targets of the global batch that count
//             in the loss. The ranks add up these targets as whole numbers in the vote, and every
//             rank divides the total gradient by their number. So each target has the same weight,
//             whatever micro-batch it is in, on every layout and after every recovery.
//   ENGINE-8  With EngineOptions::state_in_host a device computes with a state in host memory:
//             each unit's total gradient is copied to the host, the host updates the state as a CPU
//             trainer does, and the rounded parameters are copied to the device. The bits are those
//             of a state in device memory. The state is committed when step() returns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/backend.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/program/engine_options.hpp"
#include "runtime/training/axis.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/step_phase.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// Requests of one rank. The vote combines them with OR over the world, so all ranks act on them
/// after the same step.
struct StepControl {
  bool stop = false;   // stop training after this step
  bool save = false;   // write a checkpoint of this step
  bool pause = false;  // wait before the next step
  bool operator==(const StepControl&) const = default;
};

struct StepResult {
  double loss = 0;       // mean nats per trained target of the global batch, before the update; the
                         // same bits on every rank; NaN if no target is trained
  double grad_norm = 0;  // before clipping; the same bits on every rank
  StepControl agreed;    // all ranks' requests, combined
  // Of the global batch (router_counts.hpp); empty without experts. The same on every rank.
  std::vector<int64_t> router_counts;
  Hash128 state_hash;  // of this rank's shard before the step, as compared among replicas; zero
                       // with one group
  double step_ms = 0;  // the whole of step()
  double data_ms = 0;  // inside batch()
  double forward_ms = 0;
  double backward_ms = 0;  // with the end of the reductions, the gradient norm and the vote
  double optimizer_ms = 0;
  double wait_ms = 0;  // for collectives and copies; also part of the times above
  // In host memory: batch() and the passes of this rank's micro-batches, without waiting. Else 0.
  double compute_ms = 0;
};

/// Replicas of a shard that do not hold the same bits.
struct Mismatch {
  uint64_t step = 0;  // the step whose state differs
  int shard = 0;
  std::vector<Hash128> of_group;  // (G): each group's hash of the shard
  std::optional<Hash128> right;   // the hash of more than half of the groups, if there is one
  /// Groups whose hash is not `right`; empty without a majority.
  std::vector<int> wrong() const;
  Status status() const;  // Code::mismatch; its message names shard, step and wrong groups
};

/// The state of a step, and the hash that a rank has computed of its shard of it.
struct HashedState {
  uint64_t step = 0;
  Hash128 hash;
};

/// What the compute thread does in a step.
struct Activity {
  StepPhase phase = StepPhase::none;
  int block = -1;  // of forward and backward; -1: embeddings, head, or another phase
};

/// Faults for tests and drills.
enum class EngineFault : unsigned char {
  bitflip_gradient,  // flips the highest mantissa bit of one element of the total gradient of this
                     // rank's shard, after the vote
  nan_loss,          // sets the loss of the step's first micro-batch to NaN
  hang,              // the compute thread stops for ever and ignores abort()
};

class Engine {
 public:
  /// axes: that of the group, then that of the shard's replicas. backend, their communicators and
  /// state must outlive the engine. Loads no state: initialize() and attach() do. bad_config if the
  /// options, the axes and the state do not fit together.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, Backend& backend,
                                                Axes axes, TrainState& state);
  /// Stores the newest state, as wait_for_commit() does, where it can be right (ENGINE-6).
  ~Engine();

  /// Writes this shard's initial values and commits them as step 0: norms one, matrices
  /// normal(0, 0.02). Each value depends on seed, tensor and element only.
  Status initialize();

  /// Loads the committed side after a restore, a rewind or a restart; returns its step. not_found
  /// without a committed side.
  Result<uint64_t> attach();

  /// Returns the tokens of this rank's micro-batch k: (B, T + 1) int32, valid until the next call
  /// or the end of the step. May block.
  using Batch = std::function<Result<const int32_t*>(int k)>;

  /// Makes step `step` (1-based, the successor of the committed step) and commits it. Micro-batch
  /// k is leaf leaf(k) of the step. On an error the committed state is unchanged:
  ///   bad_data     The loss or the norm is not finite. Every rank returns it.
  ///   mismatch     The replicas' committed states differ (see mismatch()), or their gradient norms
  ///                differ, or a rank's state has changed in memory (see damaged()). Every rank
  ///                returns it, except that the check after the vote (ENGINE-5) is this rank's own
  ///                and ends this engine.
  ///   internal     Ranks disagree on step, signature, layout or learning rate. Every rank returns it;
  ///                of the layout before it computes anything.
  ///   any code     batch() of a rank failed. Every rank returns its code and message.
  ///   aborted      abort() was called, or batch() of this rank returned aborted.
  ///   deadline     A collective timed out, or a reader pins the side to be written.
  ///   unavailable  A peer is gone.
  /// After the last three the engine and its communicators are finished (both are aborted); the
  /// caller makes new ones. After the other errors the caller may call step() again.
  Result<StepResult> step(uint64_t step, float learning_rate, const StepControl& mine,
                          const Batch& batch);

  /// Mean loss in nats over the B*T targets of this rank's micro-batch, to which those that are not
  /// trained add nothing; tokens: (B, T + 1) int32. All ranks of the group must call it together.
  Result<double> loss(const int32_t* tokens);
  /// As loss(), but of each target: (B, T) nats. Valid until the next call.
  Result<std::span<const float>> losses(const int32_t* tokens);

  /// Compares the committed state among replicas; for after the last step, which no vote follows.
  /// All ranks of the world must call it together; with replicas every rank returns the same
  /// code. mismatch: as in step(). internal: ranks hold different steps. An error of a collective
  /// finishes this engine.
  Status compare_states();
  /// Begins to copy the newest state to host memory, unless it is there. deadline: a reader pins
  /// the side to be written. Nothing without device memory.
  Status start_commit();
  /// start_commit(), and waits until the newest state is committed in host memory, where readers
  /// can pin it.
  Status wait_for_commit();
  /// True if the last step() or compare_states() found that this rank's committed state has changed
  /// in memory (ENGINE-5). The caller should forget that state.
  bool damaged() const;
  /// How the replicas differ, if the last step() or compare_states() returned mismatch because of
  /// their states.
  const std::optional<Mismatch>& mismatch() const;
  /// The state that this rank has hashed for the vote of the last step() or for the last
  /// compare_states(); set as soon as the hash is computed, so also if the vote was aborted. Empty
  /// with one group.
  const std::optional<HashedState>& hashed() const;

  /// The only rank, group * S + shard, at fault for the error of the last step() or
  /// compare_states(), if the ranks know it: its loss or gradient is not finite, its state differs,
  /// or it could not vote for the step. The same on every rank, except for the check after the vote
  /// (ENGINE-5).
  /// In device memory gradients are not examined, only losses.
  std::optional<int> suspect() const;
  /// What was wrong there, if the vote of the last step() found it; without step and rank. Else "".
  const std::string& cause() const;

  /// The leaf m that this rank's micro-batch k is (sharding.hpp). Its samples are m * B ... m * B +
  /// B - 1 of the step.
  uint64_t leaf(int k) const;
  /// Bytes of the buffers that this engine allocated from the two communicators.
  size_t buffer_bytes() const;

  /// Makes step() and loss() return Code::aborted soon. Any thread.
  void abort(const std::string& reason);
  /// Number of units computed so far; the watchdog checks that it grows. Any thread.
  uint64_t progress() const;
  /// True while the compute thread waits in a collective, or in the phase `copy` for a copy of the
  /// state: if progress() then stands still, another rank or that copy is late. Any thread.
  bool waiting() const;
  /// Any thread.
  Activity activity() const;
  /// Injects `fault` once, in the first step from `step` on. Any thread.
  void inject(EngineFault fault, uint64_t step);

 private:
  struct Parts;
  explicit Engine(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace simplescale
