// The training states of a node's trainers, in shared memory that outlives every trainer process.
//
// Created once by the agent; afterwards any actor of the agent may ask. Threads: any; a mutex
// guards the table, the states guard themselves (train_state.hpp).
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/train_state.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// Tells layouts apart: a segment of another model or number of shards is refused.
uint64_t layout_hash(const ModelShape& shape, size_t shards, size_t shard);

class StateStore {
 public:
  /// A segment for each trainer of node `node`, named "ss-<instance>-<trainer>-state".
  Status create(const std::string& instance, const Plan& plan, int node);
  std::string segment(const std::string& trainer) const;
  /// Steps that a trainer's memory holds, the committed one last; empty if none.
  std::vector<uint64_t> held(const std::string& trainer) const;
  /// A private copy of the side that holds `step`, which process `pid` of the trainer has pinned;
  /// lets go of that pin.
  Result<std::vector<float>> copy_pinned(const std::string& trainer, int32_t pid, uint64_t step);
  /// A new process takes the trainer's place: pins of the old one are void.
  void trainer_restarted(const std::string& trainer, int32_t pid);
  size_t total(const std::string& trainer) const;

 private:
  struct Entry {
    TrainState state;
    size_t total;
    int32_t pid = 0;  // of the process whose pins count
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace simplescale
