// Sends copies from this node's memory to trainers of other nodes, with the agent as the sender.
// The supervisor orders this if no trainer of this node is up to send them (JOB-1).
#pragma once

#include <caf/all.hpp>
#include <memory>
#include <vector>

#include "runtime/training/model_shape.hpp"
#include "transport/caf/message_types.hpp"
#include "transport/collective/data_plane.hpp"

namespace simplescale {

/// Begins the transfers of `order`, which is addressed to the agent, on a thread of its own. Each
/// transfer names a segment of this node. units: of the model. timeout_ms: for each wait for
/// other processes. If a transfer fails, `node` gets a TrainerIdle of order.trainer with the fault.
/// A fence ends the waits (DataPlane::abort()).
void send_from_memory(caf::event_based_actor* node, std::shared_ptr<DataPlane> plane,
                      JoinTrainer order, std::vector<Unit> units, int timeout_ms);

}  // namespace simplescale
