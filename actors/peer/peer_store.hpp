// Copies of other nodes' shards in this node's shared memory (the peer tier). Each shard has room
// for two steps, so the older copy stays until all shards of the newer step are complete.
//
// The segments live as long as the agent. Trainers read them in a restore. Any thread, except that
// prepare(), drop_unassigned() and the states that prepare() returns belong to the thread that
// receives copies.
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
  /// prefix: of the segments' names, e.g. "ss-<instance>-n2-peer-". format: of the
  /// states. Creates no segment yet.
  PeerStore(std::string prefix, const ModelShape& shape, const StateFormat& format);

  /// Returns the memory for a shard's copies; creates it for the first copy. The next begin_write()
  /// on it does not overwrite the copy of step `keep`. layout: of the shard (layout_of()). bad_data: no
  /// such shard; io: no room.
  Result<TrainState*> prepare(uint32_t layout, uint64_t keep);
  /// Frees the memory of shards whose layouts are not in `assigned` and that hold no copy of step
  /// `keep`. Returns true if it freed any.
  bool drop_unassigned(const std::set<uint32_t>& assigned, uint64_t keep);
  std::vector<StateCopy> held() const;
  /// Injected fault: flips a bit of the newest copy of every shard, as failing memory would.
  /// not_found: there is no copy.
  Status flip_bits();
  /// Name of the segment that holds the copy of a shard at a step; "" if there is none.
  std::string segment(uint32_t layout, uint64_t step) const;

 private:
  const std::string prefix_;
  const std::vector<Unit> units_;
  const StateFormat format_;
  mutable std::mutex mutex_;
  std::map<uint32_t, TrainState> states_;  // by layout
};

/// True if a state from prepare() holds this copy, and the copy matches its hash. If not, forgets
/// any copy of the same step: it is damaged, or its generation was rolled back. Same thread as
/// prepare().
bool verify_or_forget(TrainState& state, const StateVersion& copy);

}  // namespace simplescale
