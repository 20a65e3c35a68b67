// The training states of a node's trainers, in shared memory that outlives every trainer process.
// The agent creates it once. Any thread: a mutex guards the table, and TrainState guards itself
// (runtime/training/train_state.hpp).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/parallel.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/training/train_state.hpp"

namespace simplescale {

class StateStore {
 public:
  /// Creates a segment for each slot of node `node`, named "ss-<instance>-<slot>-state", with room for
  /// a shard of the smallest group (Topology::group_sizes). places: the CPUs of each slot; its memory is allocated near them
  /// (cpu_affinity.hpp).
  Status create(const std::string& instance, const Plan& plan, int node,
                const std::vector<std::vector<int>>& places = {});
  /// The segment's name; "" if the trainer is not of this node.
  std::string segment(const std::string& trainer) const;
  bool has(const std::string& trainer) const { return !segment(trainer).empty(); }
  /// The states in a trainer's memory: at most two; the committed one last.
  std::vector<StateCopy> held(const std::string& trainer) const;
  /// The copy of this version in a trainer's memory. Nothing if it holds none.
  std::optional<StateCopy> held(const std::string& trainer, const StateVersion& version) const;
  struct Copy {
    std::shared_ptr<float[]> values;  // all parts, one after the other
    TrainState::Side side;            // the parts
    Hash128 hash = {};                // zero: unknown
  };
  /// Makes a private copy of the side that holds step `wanted`. Process `pid` of the trainer has
  /// pinned that side; this releases that pin, even after an error. not_found: no side holds the
  /// step, or another generation made it. mismatch: the state differs from the committed one
  /// (STATE-2). aborted: the trainer's process was replaced meanwhile.
  Result<Copy> copy_and_unpin(const std::string& trainer, int32_t pid, const StateVersion& wanted,
                              const Parallel& parallel = {});
  /// Releases the pin of process `pid` on `step`, if the trainer still has that process.
  void release(const std::string& trainer, int32_t pid, uint64_t step);
  /// The trainer has a new process: releases all pins of the old process.
  void trainer_restarted(const std::string& trainer, int32_t pid);
  /// Injected fault: flips a bit of the committed side, as failing memory would.
  Status flip_bit(const std::string& trainer);

 private:
  struct Entry {
    TrainState state;
    int32_t pid = 0;  // of the trainer's process: only its pins are released
    uint64_t restarts = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

/// Makes a private copy of the side of a segment that holds `step` of this layout (layout_of()). The
/// caller ensures that no trainer writes the segment meanwhile. Errors as copy_and_unpin(). Forgets
/// a damaged copy. Any thread.
Result<StateStore::Copy> copy_of(const std::string& segment, uint32_t layout, uint64_t step,
                                 const Parallel& parallel = {});

/// A trainer process's pin on the side that holds a step, handed to the actor that copies the side.
/// The pin is released once: by copy(), or by the destructor, as when an actor dies and its mailbox
/// is dropped. One thread at a time.
class StatePin {
 public:
  StatePin(std::shared_ptr<StateStore> states, std::string trainer, int32_t pid,
           const StateVersion& step);
  ~StatePin();
  StatePin(const StatePin&) = delete;
  StatePin& operator=(const StatePin&) = delete;
  /// StateStore::copy_and_unpin(). Call at most once.
  Result<StateStore::Copy> copy(const Parallel& parallel = {});

 private:
  const std::shared_ptr<StateStore> states_;
  const std::string trainer_;
  const int32_t pid_;
  const StateVersion step_;
  bool held_ = true;
};

}  // namespace simplescale
