// Plans the peer tier: which step is copied to peer nodes, from which trainers to which nodes, and
// which older copies stay meanwhile. Plain data; owned by the supervisor actor, which sends the
// orders.
//
//   PEER-1  A copy lies outside of its own cell, whose nodes are lost together. If there is no such
//           node, it lies on another node of the cell, and its own node keeps one, too: trainers
//           hold only the newest two steps, and one lost node must leave a copy of every shard.
//   PEER-2  A peer store keeps copies of two steps. The newest step of which every shard has a copy
//           is never overwritten, so that a round that fails halfway loses nothing.
//   PEER-3  A step is copied only after the next step is committed, since replicas compare the
//           state of a step in the next one. A round copies only steps made in its own generation;
//           a copy of the same step from an older generation is of a history that was undone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale::job {

/// For each shard, the trainer that sends it and the node that keeps it. Groups take turns in
/// sending. The node is up and in another cell; of these, the one with the fewest shards so far,
/// then a spare, then the next in node_order. A shard without such a node is kept by another node
/// of its cell and by its own (PEER-1); one without another node is left out. The caller fills in
/// CopyTask::address.
std::vector<CopyTask> plan_copies(const State& state);

/// The newest step of which the peer stores of connected nodes hold every shard, counting only
/// copies that a generation may begin with (trusted()). If nodes of the only cell keep the copies,
/// a shard counts once both its own and another node keep it (PEER-1).
std::optional<uint64_t> newest_kept(const State& state);

/// Rounds of copies, one at a time.
class CopyRounds {
 public:
  /// every_steps: steps that are multiples of this are copied; 0: none.
  explicit CopyRounds(uint64_t every_steps = 0) : every_(every_steps) {}
  /// `step` has been committed in the current generation, which began after step `begun_at`.
  /// Returns the order for a round of copies of the step before, if that is due, its copies are not
  /// there already, and the last round is over or 2 minutes old. None if a shard has no node to keep
  /// its copy; then lacking() is true.
  std::optional<CopyToPeers> committed(int64_t now_ms, const State& state, uint64_t step,
                                       uint64_t begun_at);
  bool lacking() const { return lacking_; }
  /// A task of the round is over for its sender, or has failed for its keeper.
  void ended(const CopySent& sent);
  /// The step of the round, once its keepers have told that they hold all of it: before that, the
  /// next round could overwrite it (PEER-2). A round with a failed task or a lost keeper has none.
  std::optional<uint64_t> completed(const State& state);
  /// A new generation begins: the current round is abandoned.
  void reset() { open_ = false; }

 private:
  uint64_t every_;
  bool lacking_ = false, failed_ = false;
  bool open_ = false;  // the round is not over
  uint64_t generation_ = 0, step_ = 0;
  std::vector<CopyTask> tasks_;
  std::multiset<uint32_t> waiting_;  // shards of the tasks that were not reported yet
  int64_t since_ms_ = 0;
};

}  // namespace simplescale::job
