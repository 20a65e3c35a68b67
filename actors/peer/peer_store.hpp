// Copies of other nodes' shards in this node's shared memory: the peer tier. A shard has room for
// two steps, so that the older stays until the newer is whole on all shards.
//
// The segments live as long as the agent and survive its trainers, which read them in a restore.
// Threads: any may ask; begin(), drop_others() and the states that begin() gives belong to the one
// thread that receives copies.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/training/model_shape.hpp"
#include "runtime/training/train_state.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

class PeerStore {
 public:
  /// prefix: of the segments' names, e.g. "ss-<instance>-n2-peer-". Nothing is made yet.
  PeerStore(std::string prefix, const ModelShape& shape, size_t shards);

  /// The memory for a shard's copies, made if it is the first. Its next begin_write() leaves `keep`
  /// alone, if that is there. bad_data: no such shard; io: no room.
  Result<TrainState*> begin(uint32_t shard, uint64_t keep);
  /// Frees the memory of shards that are not in `mine` and do not hold `keep`; returns whether
  /// there were any.
  bool drop_others(const std::set<uint32_t>& mine, uint64_t keep);
  std::vector<PeerCopy> held() const;
  /// Flips a bit of the newest copy of every shard, as failing memory would: a fault on purpose.
  /// not_found: there is none.
  Status damage();
  /// The segment that holds a shard at a step; "" if none does.
  std::string segment(uint32_t shard, uint64_t step) const;

 private:
  const std::string prefix_;
  const size_t total_;
  std::vector<uint64_t> layout_;  // by shard
  mutable std::mutex mutex_;
  std::map<uint32_t, TrainState> states_;
};

/// Whether a state that begin() gave holds this copy, as it was committed. Else one of that step is
/// forgotten: it is damaged, or of an undone past, since each generation makes a step once.
bool has_whole(TrainState& state, const HeldStep& copy);

}  // namespace simplescale
