// Shards of checkpoints that are on disk but not yet handed to the publisher. Plain data; owned by
// the supervisor actor.
//
// A checkpoint is published once the run's records have its step, so that a run that resumes from
// it finds them whole, and once replicas have compared the state of that step.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

class UnpublishedShards {
 public:
  void add(const ShardSaved& saved) { shards_.push_back(saved); }
  /// Removes and returns the shards that may be published. Drops shards of steps that were undone,
  /// in whose state replicas differed, or that are published. recorded: newest step in the records.
  std::vector<ShardSaved> take(const job::State& job, uint64_t recorded);

 private:
  std::vector<ShardSaved> shards_;
};

}  // namespace simplescale
