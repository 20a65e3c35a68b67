// The peer tier as the supervisor directs it: which step is copied, from whom to whom, and which
// older copies stay meanwhile. Pure functions of plain data; the supervisor's.
//
//   PEER-1  A copy never lies in its own cell, whose nodes are lost together.
//   PEER-2  Of two steps that a node keeps, the one that is whole on all shards is not overwritten: a
//       round that fails halfway costs nothing.
//   PEER-3  Only a step that all replicas have made alike is copied: it is, once the next one is
//       committed. It was made in the generation whose round it is, so that an older generation's
//       copy of it is of an undone past.
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

/// For each shard, the trainer that sends it (groups take turns) and the node that keeps it: up, in
/// another cell, with the fewest shards so far, rather a spare, rather the next in the list. Shards
/// for which there is no node are left out; addresses are left empty.
std::vector<CopyTask> plan_copies(const State& state);

/// The newest step of which the peer stores of nodes that are there hold every shard.
std::optional<uint64_t> newest_kept(const State& state);

/// One round of copies after the other.
class CopyRounds {
 public:
  explicit CopyRounds(uint64_t every_steps = 0) : every_(every_steps) {}
  /// `step` has been committed in the current generation, which began at `begun_at`: the order for
  /// a round of the step before, if one is due and the last is over, or has taken too long. Without
  /// a node for every shard there is none; then lacking() is true.
  std::optional<CopyToPeers> committed(int64_t now_ms, const State& state, uint64_t step,
                                       uint64_t begun_at);
  bool lacking() const { return lacking_; }
  /// Returns whether the round is over with it, on all shards.
  bool ended(const CopySent& sent);
  /// A new generation.
  void reset() { waiting_.clear(); }

 private:
  uint64_t every_;
  bool lacking_ = false, failed_ = false;
  uint64_t generation_ = 0, step_ = 0;
  std::set<uint32_t> waiting_;  // shards
  int64_t since_ms_ = 0;
};

}  // namespace simplescale::job
