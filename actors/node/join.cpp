#include "actors/node/join.hpp"

#include <algorithm>
#include <map>

#include "runtime/feed/run_data.hpp"
#include "runtime/training/axis.hpp"

namespace simplescale {
namespace {

constexpr uint32_t kGroupsMax = 1u << 20;

using Members = std::map<std::string, const Member*>;

/// False if the address differs: the trainer has a new process, which the supervisor does not know
/// yet.
bool takes_part(const Member& member, const std::vector<uint8_t>& data_address) {
  return member.data_address == data_address;
}

/// The members' addresses: of_group[group][shard] and of_shard[shard][group].
struct Places {
  std::vector<std::vector<DataAddress>> of_group, of_shard;
};

Result<Places> places_of(const JoinGeneration& job, const Topology& topology) {
  auto bad = [&](const std::string& what) {
    return Status(Code::bad_data, "generation " + std::to_string(job.generation) + ": " + what);
  };
  const uint32_t shards = job.shards;
  if (job.groups == 0 || job.groups > kGroupsMax) return bad("the number of groups is invalid");
  if (std::ranges::none_of(topology.group_sizes, [&](int size) {
        return static_cast<uint32_t>(topology.shards_of(size)) == shards;
      }))
    return bad("no group may have " + std::to_string(shards) + " shards");
  if (!job.weights.empty() && (job.weights.size() != job.groups || !are_weights(job.weights)))
    return bad("the groups' weights are invalid");
  Places places;
  places.of_group.assign(job.groups, std::vector<DataAddress>(shards));
  places.of_shard.assign(shards, std::vector<DataAddress>(job.groups));
  for (const Member& member : job.members) {
    if (member.group == no_group) continue;
    if (member.group >= job.groups || member.shard >= shards || member.data_address.empty())
      return bad(member.trainer + " has an invalid group, shard or address");
    DataAddress& place = places.of_group[member.group][member.shard];
    if (!place.bytes.empty()) return bad(member.trainer + " has the place of another trainer");
    place.bytes = member.data_address;
    places.of_shard[member.shard][member.group].bytes = member.data_address;
  }
  for (const auto& group : places.of_group)
    for (const DataAddress& place : group)
      if (place.bytes.empty()) return bad("a group has no trainer for one of its shards");
  return places;
}

/// A rank's part in a transfer. ranks: the source, then the targets.
Result<TransferPart> part_of(const Transfer& transfer, const std::vector<std::string>& ranks,
                             size_t rank, uint32_t shards, const Members& members) {
  TransferPart part{.id = transfer.id, .shard = transfer.shard, .step = transfer.step};
  part.shards = transfer.shards;
  part.rank = static_cast<uint32_t>(rank);
  part.source = transfer.source;
  for (const std::string& name : ranks) {
    const auto found = members.find(name);
    if (found == members.end())
      return Status(Code::bad_data, "transfer " + std::to_string(transfer.id) + ": " + name +
                                        " is no member of the generation");
    part.members.push_back({found->second->data_address});
  }
  if (transfer.shards == shards || transfer.targets.empty()) return part;
  part.to_shards = shards;
  part.to_shard = members.at(transfer.targets.front())->shard;
  for (const std::string& name : transfer.targets)
    if (members.at(name)->shard != part.to_shard || members.at(name)->group == no_group)
      return Status(Code::bad_data, "transfer " + std::to_string(transfer.id) + ": " + name +
                                        " has another shard than " + transfer.targets.front());
  return part;
}

/// A trainer's parts in all transfers, by their ids.
Result<std::vector<TransferPart>> transfers_of(const std::string& trainer,
                                               const std::vector<Transfer>& transfers,
                                               uint32_t shards, const Members& members,
                                               const PeerSegment& peer_segment) {
  std::vector<TransferPart> parts;
  for (const Transfer& transfer : transfers) {
    std::vector<std::string> ranks = {transfer.source};
    for (const std::string& target : transfer.targets)
      if (target != transfer.source) ranks.push_back(target);
    const auto rank = std::ranges::find(ranks, trainer);
    if (rank == ranks.end()) continue;
    SS_ASSIGN(TransferPart part,
              part_of(transfer, ranks, static_cast<size_t>(rank - ranks.begin()), shards, members));
    part.takes = std::ranges::count(transfer.targets, trainer) > 0;
    if (transfer.peer && part.rank == 0) {
      part.segment = peer_segment(transfer);
      if (part.segment.empty())
        return Status(Code::not_found, "the peer store does not hold shard " +
                                           std::to_string(transfer.shard) + " of " +
                                           std::to_string(transfer.shards) + " at step " +
                                           std::to_string(transfer.step));
    }
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts, {}, &TransferPart::id);
  return parts;
}

}  // namespace

std::string segment_of_copy(const JoinGeneration& job, const std::vector<LocalMemory>& memory,
                            const Transfer& transfer) {
  std::string segment;
  uint64_t newest = 0;
  for (const LocalMemory& of : memory) {
    const auto member = std::ranges::find(job.members, of.trainer, &Member::trainer);
    if (member != job.members.end() && takes_part(*member, of.data_address)) continue;
    for (const StateCopy& copy : of.copies)
      if (copy.shard == transfer.shard && copy.shards == transfer.shards &&
          copy.step == transfer.step && copy.generation >= newest) {
        segment = of.segment;
        newest = copy.generation;
      }
  }
  return segment;
}

Result<NodeOrders> orders_of(const JoinGeneration& job, const Plan& plan,
                             const std::vector<LocalTrainer>& locals,
                             const PeerSegment& peer_segment) {
  SS_ASSIGN(const Places places, places_of(job, plan.topology));
  Members members;
  for (const Member& member : job.members) members[member.trainer] = &member;
  NodeOrders orders;
  orders.fill = {
      job.generation, job.step, batch_layout(plan, job.groups, job.shards, job.weights), {}};
  for (const LocalTrainer& local : locals) {
    const auto found = members.find(local.name);
    if (found == members.end() || !takes_part(*found->second, local.data_address)) continue;
    const Member& me = *found->second;
    JoinTrainer order;
    order.trainer = local.name;
    order.generation = job.generation;
    order.group = me.group;
    order.shard = me.shard;
    order.shards = job.shards;
    if (!job.transfers.empty() && job.transfers.front().shards != job.shards)
      order.from_shards = job.transfers.front().shards;
    order.state_segment = local.state_segment;
    order.source = job.source;
    order.step = job.step;
    order.checkpoint = job.checkpoint;
    order.rates = job.rates;
    order.weights = job.weights;
    if (me.group != no_group) {
      order.ring = static_cast<uint32_t>(orders.fill.trainers.size());
      orders.fill.trainers.push_back({me.group, me.shard});
      order.groups = job.groups;
      order.axes = {{kShardAxis, me.shard, places.of_group[me.group]},
                    {kReplicateAxis, me.group, places.of_shard[me.shard]}};
    }
    SS_ASSIGN(order.transfers,
              transfers_of(local.name, job.transfers, job.shards, members, peer_segment));
    orders.trainers.push_back(std::move(order));
  }
  return orders;
}

}  // namespace simplescale
