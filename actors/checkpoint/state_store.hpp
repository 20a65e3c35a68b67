// The training states of a node's trainers, in shared memory that outlives every trainer process.
//
// Created once by the agent; afterwards any actor of the agent may ask. Threads: any; a mutex
// guards the table, the states guard themselves (train_state.hpp).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/config/topology.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

/// What a trainer's memory holds.
struct HeldState {
  uint32_t shard = 0;
  std::vector<HeldStep> steps;  // the committed one last; empty if none
};

/// Tells layouts apart: a segment of another model or number of shards is refused.
uint64_t layout_hash(const ModelShape& shape, size_t shards, size_t shard);

class StateStore {
 public:
  /// A segment for each slot of node `node`, named "ss-<instance>-<slot>-state". Any shard may come
  /// to lie in it. places: the CPUs of each slot (cpu_affinity.hpp), near which its memory is to
  /// lie.
  Status create(const std::string& instance, const Plan& plan, int node,
                const std::vector<std::vector<int>>& places = {});
  std::string segment(const std::string& trainer) const;
  bool has(const std::string& trainer) const { return !segment(trainer).empty(); }
  HeldState held(const std::string& trainer) const;
  /// A private copy of the side that holds a step, which process `pid` of the trainer has pinned;
  /// lets go of that pin, whatever it returns. not_found: none does, or as another generation made
  /// it. mismatch: it is not what was committed (STATE-2).
  struct Copy {
    std::vector<float> values;  // params, exp_avg, exp_avg_sq
    Hash128 hash;               // zero: not known
    TrainState::Side side();
  };
  Result<Copy> copy_pinned(const std::string& trainer, int32_t pid, const HeldStep& wanted);
  /// Lets go of the pin of process `pid` on `step`, which nobody is going to copy.
  void release(const std::string& trainer, int32_t pid, uint64_t step);
  /// A new process takes the trainer's place: pins of the old one are void.
  void trainer_restarted(const std::string& trainer, int32_t pid);
  /// Flips a bit of the committed side, as failing memory would: a fault on purpose.
  Status damage(const std::string& trainer);
  size_t total(const std::string& trainer) const;

 private:
  struct Entry {
    TrainState state;
    size_t total;
    int32_t pid = 0;  // of the process whose pins count
    uint64_t restarts = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::vector<uint64_t> hash_of_shard_;
};

/// The pin of a trainer's process on the side that holds a step, handed over to who is to copy that
/// side. It is let go of once, also if nobody copies it: the message that carries this may be
/// dropped anywhere, as those are that an actor leaves behind when it dies. One thread at a time.
class PinnedState {
 public:
  PinnedState(std::shared_ptr<StateStore> states, std::string trainer, int32_t pid,
              const HeldStep& step);
  ~PinnedState();
  PinnedState(const PinnedState&) = delete;
  PinnedState& operator=(const PinnedState&) = delete;
  /// StateStore::copy_pinned; once.
  Result<StateStore::Copy> copy();

 private:
  const std::shared_ptr<StateStore> states_;
  const std::string trainer_;
  const int32_t pid_;
  const HeldStep step_;
  bool held_ = true;
};

}  // namespace simplescale
