// The copies of a node in other nodes' memory (the peer tier). Sends copies of its trainers' shards
// to nodes in other failure domains, and receives copies of their shards, over the agent's own data
// plane. A trainer's side is pinned only while it is staged.
//
//   stage    at once, on the actor's own thread: a private copy, checked against its hash (STATE-2)
//   send     when the supervisor orders it, one copy at a time, on a thread of low priority
//   receive  one copy at a time, on another thread of low priority, into the PeerStore
//
// The supervisor decides which node gets which step (actors/supervisor/copy_plan.hpp), and orders
// only steps whose replicas have been compared. All threads are detached actors, which may block;
// the data plane's abort() ends their waits.
//
//   in   local::StageCopy, CopyToPeers, OfferCopy (the node delegates it; answered by AcceptCopy)
//   out  CopySent, PeerCopies; to the node
#pragma once

#include <caf/all.hpp>
#include <memory>
#include <mutex>
#include <string>

#include "actors/checkpoint/state_store.hpp"
#include "actors/find_node.hpp"
#include "actors/local.hpp"
#include "actors/peer/peer_store.hpp"
#include "transport/collective/data_plane.hpp"

namespace simplescale {

/// Data that the threads of a node's peer tier share.
struct PeerTier {
  /// prefix: agent_segments(). format: of the states.
  PeerTier(const std::string& prefix, const ModelShape& shape, const StateFormat& format,
           std::shared_ptr<DataPlane> its_plane, int its_timeout_ms)
      : store(prefix + "peer-", shape, format),
        plane(std::move(its_plane)),
        timeout_ms(its_timeout_ms) {}
  PeerStore store;
  const std::shared_ptr<DataPlane> plane;  // the agent's
  const int timeout_ms;                    // for each wait for the other node
  /// Aborts the transfers of generations older than `newer` (GEN-1). JOB-1: once this returns, the
  /// store takes no copy that those generations made, so the agent can report what it holds. Any
  /// thread.
  void fence(uint64_t newer);
  /// Commits what was written to `state` of the store: from now on it is a copy of `step` that
  /// `its_generation` made. aborted: that generation is over (GEN-1). Any thread.
  Status commit(TrainState& state, uint64_t its_generation, uint64_t step, const Hash128& hash);
  /// Call when an order to copy `step` of `its_generation` has come, or the offer of such a copy.
  /// An offer may overtake its order, and older orders (PEER-2). Any thread.
  void ordered(uint64_t its_generation, uint64_t step);
  /// True if this node knows of no newer generation and no newer order to copy. Any thread.
  bool is_current(uint64_t its_generation, uint64_t step) const;

 private:
  mutable std::mutex mutex_;  // a fence comes before or after a commit, never during it
  uint64_t generation_ = 0;   // the newest known
  uint64_t newest_step_ = 0;  // of that generation's newest order to copy
};

struct PeerCopiesOptions {
  std::string node;  // "n1"
  std::shared_ptr<PeerTier> tier;
  std::shared_ptr<StateStore> states;
  FindNode find;
};

/// Spawns the actor; the node monitors it.
caf::actor spawn_peer_copies(caf::event_based_actor* node, PeerCopiesOptions options);

}  // namespace simplescale
