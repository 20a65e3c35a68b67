// What a generation means for the trainers of one node: the supervisor's order for all nodes, made
// into one for each of them. Pure functions of plain data; what a peer sends is checked here.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/local.hpp"
#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A trainer of this node that is up.
struct LocalTrainer {
  std::string name;           // "n1.0"
  std::string state_segment;  // shared memory that holds its state
  std::vector<uint8_t> data_address;
};

struct NodeOrders {
  std::vector<JoinTrainer> trainers;  // those of this node that take part, without ring_segment
  local::FillRings fill{};            // ring i belongs to fill.trainers[i]
};

/// In which round each trainer that gives its shard to others discards it (RESTORE-1 of
/// trainer/restore.hpp): one after the last of those it gives to; who is not named here settles in
/// round 0. What comes out of a peer store, or from a trainer that only helps, stays there whoever
/// settles. Rings of moves cannot be ordered: theirs is one round, in which a death may cost a
/// shard that lies nowhere else.
std::map<std::string, uint32_t> commit_rounds(const JoinGeneration& job);

/// peer_segment: where this node keeps the copy of a shard that lies in its peer store; "" if it
/// does not. A trainer whose process is another one than the order knows is left out: the
/// supervisor is about to hear of it. bad_data: the order contradicts itself.
Result<NodeOrders> orders_of(
    const JoinGeneration& job, uint32_t shards, const std::vector<LocalTrainer>& locals,
    const std::function<std::string(uint32_t shard, uint64_t step)>& peer_segment);

}  // namespace simplescale
