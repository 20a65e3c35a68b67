// Turns the supervisor's JoinGeneration, which is the same for all nodes, into one JoinTrainer
// order for each trainer of this node. Pure functions of plain data. The supervisor's message is
// validated here.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/ring_filler.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A trainer of this node that is up, or its agent.
struct LocalTrainer {
  std::string name;           // "n1.0", "n1"
  std::string state_segment;  // shared memory that holds its state; of an agent: ""
  std::vector<uint8_t> data_address;
};

/// Memory of this node that holds copies: of a trainer, up or not, or one copy in the peer store.
struct LocalMemory {
  std::string trainer;                // "": the peer store's
  std::vector<uint8_t> data_address;  // of the trainer's process; empty: none is up
  std::vector<PeerCopy> copies;
  std::string segment;
};

/// The segment of the copy of `shard` at `step` that this node sends for another of its trainers:
/// in the peer store, or in the memory of a trainer that takes no part in the generation. The
/// supervisor counted the memory of a trainer that was not up; its process may be up again when the
/// order arrives, and has not touched that memory. Of several copies the newest generation's,
/// because the older ones were undone (JOB-3). "": there is none.
std::string segment_of_copy(const JoinGeneration& job, const std::vector<LocalMemory>& memory,
                            uint32_t shard, uint64_t step);

/// Name of the segment of this node from which a trainer or the agent sends a copy of a shard at a
/// step that is not its own state; "" if there is none.
using PeerSegment = std::function<std::string(uint32_t shard, uint64_t step)>;

struct NodeOrders {
  std::vector<JoinTrainer> trainers;  // that take part in the generation; ring_segment is not set
  FillPlan fill;                      // for the token rings of those that train
};

/// The round in which each trainer that sends its shard commits its new state, and so discards the
/// shard it held (RESTORE-1 of trainer/restore.hpp): one after the last of its receivers. A trainer
/// that is not in the map commits in round 0. A copy sent from a peer store, or by a trainer that
/// joins no group, is not discarded and needs no round. A cycle of transfers cannot be ordered: all
/// its trainers commit in one round, and a death in that round may lose a shard that lies nowhere
/// else.
std::map<std::string, uint32_t> commit_rounds(const JoinGeneration& job);

/// locals: the trainers of this node that are up, and its agent. A trainer whose data_address
/// differs from the one in `job` is left out: its process is a new one, of which the supervisor is
/// about to hear. bad_data: the job contradicts itself, or names a peer copy that is not here.
Result<NodeOrders> orders_of(const JoinGeneration& job, const Plan& plan,
                             const std::vector<LocalTrainer>& locals,
                             const PeerSegment& peer_segment);

}  // namespace simplescale
