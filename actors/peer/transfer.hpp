// The data plane of an agent, and a trainer's or agent's end of a transfer of a generation: one copy
// of a shard's state, from the memory of one node to trainers that lack it (TransferPart of
// transport/protocol/messages.hpp).
#pragma once

#include <memory>
#include <string>

#include "runtime/training/collective.hpp"
#include "transport/collective/data_plane.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// "ss-<instance>-n<node>-": how the names of an agent's shared-memory segments begin, but for those
/// of its trainers.
std::string agent_segments(const std::string& instance, int node);

/// The data plane of an agent. options: network, key and trusted_networks count.
Result<std::shared_ptr<DataPlane>> make_agent_plane(DataPlaneOptions options,
                                                    const std::string& instance, int node);

/// The communicator of a transfer. part: of the process that owns `plane`; all members call this
/// with the same generation. timeout_ms: of the join, and of each wait. Errors as DataPlane::join().
/// Blocking; any thread.
Result<std::unique_ptr<Collective>> join_transfer(DataPlane& plane, uint64_t generation,
                                                  const TransferPart& part, int timeout_ms);

/// Sends the copy in the segment `part.segment` to all other members, of which there is at least
/// one. total: elements of a shard. mismatch: the copy was damaged, and has been forgotten.
/// not_found: the segment does not hold the step. Otherwise as send_state() of
/// runtime/training/state_transfer.hpp. Blocking; any thread.
Status send_segment(DataPlane& plane, uint64_t generation, const TransferPart& part, size_t total,
                    int timeout_ms);

}  // namespace simplescale
