// Turns the supervisor's JoinGeneration, which is the same for all nodes, into one JoinTrainer
// order for each trainer of this node. Pure functions of plain data. They validate the supervisor's
// message.
#pragma once

#include <functional>
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
  std::vector<StateCopy> copies;
  std::string segment;
};

/// Returns the segment of the copy of a transfer that this node sends for another of its
/// trainers; "" if there is none. It lies in the peer store, or in the memory of a trainer that
/// takes no part in the generation. The supervisor counted that memory because the trainer was
/// down. The trainer's process may be up again when the order arrives, but it has not touched the
/// memory yet. Of several copies, this takes the one from the newest generation, because the older
/// ones were rolled back (JOB-3).
std::string segment_of_copy(const JoinGeneration& job, const std::vector<LocalMemory>& memory,
                            const Transfer& transfer);

/// Returns the name of this node's segment with the copy of a transfer, for a trainer that does not
/// hold it itself, or for the agent. "" if there is none.
using PeerSegment = std::function<std::string(const Transfer& transfer)>;

struct NodeOrders {
  std::vector<JoinTrainer> trainers;  // for trainers of the generation; ring_segment is not set
  FillPlan fill;                      // for the token rings of the trainers that train
};

/// locals: the trainers of this node that are up, and its agent. Leaves out a trainer whose
/// data_address differs from the one in `job`: it has a new process, which the supervisor does not
/// know yet. bad_data: the job contradicts itself. not_found: it names a peer copy that this node does not
/// have.
Result<NodeOrders> orders_of(const JoinGeneration& job, const Plan& plan,
                             const std::vector<LocalTrainer>& locals,
                             const PeerSegment& peer_segment);

}  // namespace simplescale
