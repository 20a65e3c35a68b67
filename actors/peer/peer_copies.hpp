// The peer tier of a node: copies of its trainers' shards go to the memory of nodes in other cells,
// and copies of others' shards come here, over a data plane of the agent's own. Trainers only pin a
// side for as long as it takes to copy it.
//
//   stage    at once, on the actor's own thread: a private copy, held against its hash (STATE-2)
//   send     when the supervisor asks for it, one after the other, on a thread of low priority
//   receive  one after the other, on another such thread, into the PeerStore
//
// Which step goes where is the supervisor's decision (job/copy_plan.hpp); it asks only for steps
// whose replicas have been compared. In: local::StageCopy, CopyToPeers, OfferCopy (delegated by the
// node, answered by AcceptCopy). Out, to the node: CopySent, PeerCopies. All threads are detached
// actors, which may block; stop() ends their waits.
#pragma once

#include <atomic>
#include <caf/all.hpp>
#include <memory>
#include <string>

#include "actors/checkpoint/state_store.hpp"
#include "actors/find_node.hpp"
#include "actors/local.hpp"
#include "actors/peer/peer_store.hpp"
#include "transport/collective/data_plane.hpp"

namespace simplescale {

/// What a node has for its peer tier.
struct PeerTier {
  PeerTier(const std::string& prefix, const ModelShape& shape, size_t shards,
           std::unique_ptr<DataPlane> its_plane, int its_timeout_ms)
      : store(prefix + "peer-", shape, shards),
        plane(std::move(its_plane)),
        timeout_ms(its_timeout_ms) {}
  PeerStore store;
  const std::unique_ptr<DataPlane> plane;
  const int timeout_ms;                   // of each wait for the other node
  std::atomic<uint64_t> generation = 0;   // the newest heard of
  std::atomic<uint64_t> newest_step = 0;  // of the newest round
  /// Ends what older generations have under way (GEN-1). Any thread.
  void fence(uint64_t newer) {
    uint64_t known = generation;
    while (known < newer && !generation.compare_exchange_weak(known, newer)) {
    }
    if (newer > 0) plane->abort(newer - 1, "a new generation begins");
  }
  /// Of a round that still counts. Any thread.
  bool current(uint64_t its_generation, uint64_t step) const {
    return its_generation >= generation && step >= newest_step;
  }
  /// Ends every wait of the plane. Any thread.
  void stop() { plane->abort(UINT64_MAX, "the node stops"); }
};

/// instance, node: as in the names of the node's other segments.
Result<std::shared_ptr<PeerTier>> make_peer_tier(const std::string& instance, int node,
                                                 const ModelShape& shape, size_t shards,
                                                 int timeout_ms);

struct PeerCopiesOptions {
  std::string node;  // "n1"
  std::shared_ptr<PeerTier> tier;
  std::shared_ptr<StateStore> states;
  FindNode find;
};

/// The node monitors it.
caf::actor spawn_peer_copies(caf::event_based_actor* node, PeerCopiesOptions options);

}  // namespace simplescale
