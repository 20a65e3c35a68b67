// Turns the supervisor's JoinGeneration, which is the same for all nodes, into one JoinTrainer
// order for each trainer of this node. Pure functions of plain data. They validate the supervisor's
// message.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/ring_filler.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A trainer of this node that is up, or its agent.
struct LocalTrainer {
  std::string name;           // "n1.0"; of an agent: "n1"
  std::string state_segment;  // shared memory that holds the trainer's state; of an agent: ""
  std::vector<uint8_t> data_address;
};

/// Memory of this node that holds copies: the memory of a trainer, even if it is down, or one copy
/// in the peer store.
struct LocalMemory {
  std::string trainer;                // "": in the peer store
  std::vector<uint8_t> data_address;  // of the trainer's process; empty: the trainer is down
  std::vector<PeerCopy> copies;
  std::string segment;
};

/// Returns the segment of a copy of `shard` at `step` that this node sends for another of its
/// trainers; "" if there is none. It lies in the peer store, or in the memory of a trainer that
/// takes no part in the generation. The supervisor counted that memory because the trainer was
/// down. The trainer's process may be up again when the order arrives, but it has not touched the
/// memory yet. Of several copies, this takes the one from the newest generation, because the older
/// ones were rolled back (JOB-3).
std::string segment_of_copy(const JoinGeneration& job, const std::vector<LocalMemory>& memory,
                            uint32_t shard, uint64_t step);

/// Returns the name of this node's segment with a copy of a shard at a step, for a trainer that
/// does not hold it itself, or for the agent. "" if there is none.
using PeerSegment = std::function<std::string(uint32_t shard, uint64_t step)>;

struct NodeOrders {
  std::vector<JoinTrainer> trainers;  // for trainers of the generation; ring_segment is not set
  FillPlan fill;                      // for the token rings of the trainers that train
};

/// For each trainer that sends its own shard: the round in which it commits its new state. The
/// commit discards the shard that it held (RESTORE-1 of trainer/restore.hpp), so its round comes
/// after those of all its receivers. A trainer that is not in the map commits in round 0. A copy is
/// not discarded, and needs no round, if it is sent from a peer store or by a trainer that joins no
/// group. The trainers of a cycle of transfers have no such order: they all commit in one round,
/// and a death in that round may lose a shard of which no other copy exists.
std::map<std::string, uint32_t> commit_rounds(const JoinGeneration& job);

/// locals: the trainers of this node that are up, and its agent. Leaves out a trainer whose
/// data_address differs from the one in `job`: it has a new process, which the supervisor does not
/// know yet. bad_data: the job contradicts itself, or names a peer copy that this node does not
/// have.
Result<NodeOrders> orders_of(const JoinGeneration& job, const Plan& plan,
                             const std::vector<LocalTrainer>& locals,
                             const PeerSegment& peer_segment);

}  // namespace simplescale
