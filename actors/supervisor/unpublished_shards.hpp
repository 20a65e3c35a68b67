// Which shards of checkpoints may be handed to the publisher. A pure function, for the supervisor
// actor.
//
// A checkpoint is published once the run's records have its step, so that a run that resumes from
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
/// shard if the supervisor has undone its step, or the publisher has published it, or if replicas
/// differed in that step. Keeps shards of a generation that this supervisor does not know, because
/// the decision that began it is lost, until it hears of that generation. recorded: newest step in
/// the records.
std::vector<ShardSaved> take_publishable(std::vector<ShardSaved>& unpublished,
                                         const job::State& job, uint64_t recorded);

/// Counts the shards that the publisher was given, by its rules: it publishes no step of which a
/// shard failed, and none of an older generation than the newest one that it was given.
class WrittenShards {
 public:
  /// True if the publisher has all shards of the step now, so that it publishes them. shards: how
  /// many a checkpoint has.
  bool add(const ShardSaved& saved, size_t shards);

 private:
  struct Step {
    std::set<uint64_t> shards;
    bool ended = false;  // failed, or given completely
  };
  uint64_t generation_ = 0;
  std::map<uint64_t, Step> steps_;  // of this generation
};

}  // namespace simplescale
