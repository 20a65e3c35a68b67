// The data plane of an agent, and one process's part in a transfer. A transfer sends one copy of a
// shard's state from the memory of a node to the trainers that lack it (TransferPart of
// transport/protocol/protocol.capnp).
#pragma once

#include <memory>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/training/collective.hpp"
#include "runtime/training/model_shape.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// "ss-<instance>-n<node>-": the prefix of the names of an agent's shared-memory segments, except
/// those of its trainers.
std::string agent_segments(const std::string& instance, int node);

/// Creates the data plane of an agent. options: only network, key and trusted_networks are used.
Result<std::shared_ptr<DataPlane>> make_agent_plane(DataPlaneOptions options,
                                                    const std::string& instance, int node);

/// Joins the communicator of a transfer. part: of the process that owns `plane`. All members call
/// this with the same generation. timeout_ms: of the join, and of each wait. Errors as
/// DataPlane::join(). Blocking; any thread.
Result<std::unique_ptr<Collective>> join_transfer(DataPlane& plane, uint64_t generation,
                                                  const TransferPart& part, int timeout_ms);

/// The pieces of the shard that a transfer sends; none: the whole shard. bad_data: there is no such shard,
/// or it has nothing of the shard of its receivers.
Result<std::vector<Piece>> sent_pieces(const std::vector<Unit>& units, const TransferPart& part);

/// Sends the copy in the segment `part.segment` to all other members; there is at least one. units: of
/// the model. blocks: as in Sending, for the next transfer. mismatch: the copy was damaged, and is now forgotten. not_found: the segment does not hold the step. Otherwise as
/// send_state() of runtime/training/state_transfer.hpp. Blocking; any thread.
Status send_segment(DataPlane& plane, uint64_t generation, const TransferPart& part,
                    const std::vector<Unit>& units, std::vector<Hash128>& blocks, int timeout_ms);

}  // namespace simplescale
