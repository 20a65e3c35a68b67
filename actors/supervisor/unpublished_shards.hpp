// Which shards of checkpoints the publisher may get. A pure function, for the supervisor actor.
//
// A checkpoint is published once the run's records have its step, so that a run which resumes from
// it finds complete records, and once replicas have compared the state of that step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// unpublished: shards that are on disk. Removes and returns those that may be published. Drops a
/// shard if its step was rolled back, if that step is published already, or if replicas differed in
/// it. Keeps shards of a generation that this supervisor does not know yet, because the decision
/// that began it was lost. recorded: newest step in the records.
std::vector<ShardSaved> take_publishable(std::vector<ShardSaved>& unpublished,
                                         const job::State& job, uint64_t recorded);

/// Counts the shards that the publisher got, by the publisher's rules: it publishes no step of
/// which a shard failed, and no step of an older generation than the newest one that it got.
class WrittenShards {
 public:
  /// True if the publisher now has all shards of the step, so that it publishes them. All shards of
  /// a generation are of one cut.
  bool add(const ShardSaved& saved);

 private:
  struct Step {
    std::set<uint64_t> shards;
    bool ended = false;  // a shard failed, or the publisher has all shards
  };
  uint64_t generation_ = 0;
  std::map<uint64_t, Step> steps_;  // of this generation
};

}  // namespace simplescale
