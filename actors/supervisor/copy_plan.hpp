// Plans copies to peer nodes (the peer tier): which step is copied, from which trainers to which
// nodes, and which older copies stay meanwhile. Plain data; owned by the supervisor actor, which
// sends the orders.
//
//   PEER-1  A copy lies outside of its own failure domain, whose nodes are lost together. If
//           there is no such node, another node of the domain and its own node both keep a copy:
//           trainers hold only the newest two steps, and one lost node must leave a copy of every
//           shard.
//   PEER-2  A peer store keeps copies of two steps. The newest step of which every shard has a copy
//           is never overwritten, so that a round that fails halfway loses nothing.
//   PEER-3  A step is copied only after the next step is committed, since replicas compare the
//           state of a step in the next one. A round copies only steps made in its own generation;
//           a copy of the same step from an older generation is of an abandoned branch.
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

/// For each shard, the trainer that sends it and the node that keeps it. The groups take turns in
/// sending. The keeper is an up node in another failure domain: the node with the fewest shards so
/// far, then a spare, then the next in node_order. If there is no such node, another node of the
/// failure domain and the shard's own node keep it (PEER-1); if there is no other node at all, the
/// shard is left out. The caller fills in CopyTask::address.
std::vector<CopyTask> plan_copies(const State& state);

/// The newest step of which the peer stores of connected nodes hold every shard of a cut. Only
/// trusted() copies count. If nodes of the only failure domain keep the copies, a shard counts once
/// both its own and another node keep it (PEER-1); one of another cut than the layout's has no own
/// node, so two nodes must keep it.
std::optional<uint64_t> newest_kept(const State& state);

/// Rounds of copies, one at a time.
class CopyRounds {
 public:
  /// every_steps: steps that are multiples of this are copied; 0: none.
  explicit CopyRounds(uint64_t every_steps = 0) : every_(every_steps) {}
  /// `step` has been committed in the current generation, which began after step `begun_at`.
  /// Returns the order for a round of copies of the step before, if that step is due, is not copied
  /// yet, and the last round is over or 2 minutes old. Returns nothing if no node can keep a
  /// shard's copy; then lacking() is true.
  std::optional<CopyToPeers> committed(int64_t now_ms, const State& state, uint64_t step,
                                       uint64_t begun_at);
  bool lacking() const { return lacking_; }
  /// The sender of a task has finished it, or its keeper has failed.
  void ended(const CopySent& sent);
  /// The step of the round, once its keepers have reported that they hold all of it. Before that,
  /// the next round could overwrite it (PEER-2). Nothing if a task failed or a keeper was lost.
  std::optional<uint64_t> completed(const State& state);
  /// A new generation begins: the current round is abandoned.
  void reset() { open_ = false; }

 private:
  uint64_t every_;
  bool lacking_ = false, failed_ = false;
  bool open_ = false;  // a round is under way
  uint64_t generation_ = 0, step_ = 0;
  std::vector<CopyTask> tasks_;
  std::multiset<uint32_t> waiting_;  // shards of the tasks that have not been reported yet
  int64_t since_ms_ = 0;
};

}  // namespace simplescale::job
