// The peer tier of a node: sends copies of its trainers' shards to the memory of nodes in other
// cells, and receives copies of their shards, over a data plane of the agent's own. A trainer's
// side is pinned only while it is staged.
//
//   stage    at once, on the actor's own thread: a private copy, checked against its hash (STATE-2)
//   send     when the supervisor orders it, one copy at a time, on a thread of low priority
//   receive  one copy at a time, on another thread of low priority, into the PeerStore
//
// The supervisor decides which step goes where (actors/supervisor/copy_plan.hpp), and orders only
// steps whose replicas have been compared. All threads are detached actors, which may block;
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

/// What the threads of a node's peer tier share.
struct PeerTier {
  /// prefix: agent_segments(). format: of the states.
  PeerTier(const std::string& prefix, const ModelShape& shape, size_t shards,
           const StateFormat& format, std::shared_ptr<DataPlane> its_plane, int its_timeout_ms)
      : store(prefix + "peer-", shape, shards, format),
        plane(std::move(its_plane)),
        timeout_ms(its_timeout_ms) {}
  PeerStore store;
  const std::shared_ptr<DataPlane> plane;  // the agent's
  const int timeout_ms;                    // of each wait for the other node
  /// Aborts the transfers of generations older than `newer` (GEN-1). JOB-1: once this returns, the
  /// store takes no copy that they made, so that the agent can say what the store holds. Any thread.
  void fence(uint64_t newer);
  /// Makes what was written to `state`, which is of the store, a copy of `step` that
  /// `its_generation` made. aborted: that generation is over (GEN-1). Any thread.
  Status commit(TrainState& state, uint64_t its_generation, uint64_t step, const Hash128& hash);
  /// An order to copy `step` of `its_generation` has come, or the offer of such a copy. The offer may
  /// be faster than the order, and than older orders (PEER-2). Any thread.
  void ordered(uint64_t its_generation, uint64_t step);
  /// True if no newer generation or order to copy is known. Any thread.
  bool is_current(uint64_t its_generation, uint64_t step) const;

 private:
  mutable std::mutex mutex_;  // a fence comes before or after a commit
  uint64_t generation_ = 0;   // the newest known
  uint64_t newest_step_ = 0;  // of the newest order to copy of that generation
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
