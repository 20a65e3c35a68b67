#include "actors/peer/transfer.hpp"

#include "runtime/training/state_transfer.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

std::string agent_segments(const std::string& instance, int node) {
  return "ss-" + instance + "-n" + std::to_string(node) + "-";
}

Result<std::shared_ptr<DataPlane>> make_agent_plane(DataPlaneOptions options,
                                                    const std::string& instance, int node) {
  options.shm_prefix = agent_segments(instance, node) + "copies";
  options.arena_bytes =
      size_t{1} << 20;  // small: both ends lie outside of it and go through staging
  options.spin_us = 0;  // latency does not matter
  SS_ASSIGN(auto plane, DataPlane::create(options));
  return std::shared_ptr<DataPlane>(std::move(plane));
}

Result<std::unique_ptr<Collective>> join_transfer(DataPlane& plane, uint64_t generation,
                                                  const TransferPart& part, int timeout_ms) {
  CommunicatorSpec spec;
  spec.generation = generation;
  spec.name = "heal-" + std::to_string(part.id);
  spec.rank = static_cast<int>(part.rank);
  for (const DataAddress& member : part.members)
    spec.members.push_back(host_plane_address(member.bytes));
  spec.timeout_ms = timeout_ms;
  spec.host_memory = true;
  return plane.join(spec);
}

Result<std::vector<Piece>> sent_pieces(const std::vector<Unit>& units, const TransferPart& part) {
  std::vector<Piece> pieces;
  if (part.to_shards == 0) return pieces;
  if (part.shard < part.shards && part.to_shard < part.to_shards)
    pieces = common_pieces(units, part.shards, part.shard, part.to_shards, part.to_shard);
  if (pieces.empty())
    return Status(Code::bad_data, "it has nothing of shard " + std::to_string(part.to_shard) +
                                      " of " + std::to_string(part.to_shards));
  return pieces;
}

Status send_segment(DataPlane& plane, uint64_t generation, const TransferPart& part,
                    const std::vector<Unit>& units, std::vector<Hash128>& blocks, int timeout_ms) {
  SS_ASSIGN(const std::vector<Piece> pieces, sent_pieces(units, part));
  SS_ASSIGN(TrainState held, TrainState::open(part.segment));
  SS_ASSIGN(const auto to_targets, join_transfer(plane, generation, part, timeout_ms));
  return send_state(*to_targets, held, part.step, layout_of(part.shards, part.shard),
                    {pieces, &blocks});
}

}  // namespace simplescale
