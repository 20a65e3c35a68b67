#include "actors/node/join.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace simplescale {
namespace {

constexpr uint32_t groups_max = 1u << 20;

using Members = std::map<std::string, const Member*>;

/// Addresses by shard (of a group) or by group (of a shard).
struct Places {
  std::vector<std::vector<DataAddress>> of_group, of_shard;
};

Result<Places> places_of(const JoinGeneration& job, uint32_t shards) {
  auto bad = [&](const std::string& what) {
    return Status(Code::bad_data, "generation " + std::to_string(job.generation) + ": " + what);
  };
  if (job.groups == 0 || job.groups > groups_max) return bad("has no groups");
  Places places;
  places.of_group.assign(job.groups, std::vector<DataAddress>(shards));
  places.of_shard.assign(shards, std::vector<DataAddress>(job.groups));
  for (const Member& member : job.members) {
    if (member.group == no_group) continue;
    if (member.group >= job.groups || member.shard >= shards || member.data_address.empty())
      return bad(member.trainer + " has no place in it");
    DataAddress& place = places.of_group[member.group][member.shard];
    if (!place.bytes.empty()) return bad(member.trainer + "'s place is taken");
    place.bytes = member.data_address;
    places.of_shard[member.shard][member.group].bytes = member.data_address;
  }
  for (const auto& group : places.of_group)
    for (const DataAddress& place : group)
      if (place.bytes.empty()) return bad("a place in it is empty");
  return places;
}

/// The transfer as rank `rank` of source, then targets, sees it.
Result<TransferPart> part_of(const Transfer& transfer, const std::vector<std::string>& ranks,
                             size_t rank, const Members& members) {
  TransferPart part{.id = transfer.id, .shard = transfer.shard, .step = transfer.step};
  part.rank = static_cast<uint32_t>(rank);
  part.source = transfer.source;
  for (const std::string& name : ranks) {
    const auto found = members.find(name);
    if (found == members.end())
      return Status(Code::bad_data, "transfer " + std::to_string(transfer.id) + ": " + name +
                                        " is no member of the generation");
    part.members.push_back({found->second->data_address});
  }
  return part;
}

/// Who gives to whom out of its own memory.
using Gifts = std::map<std::string, std::vector<std::string>>;

bool gives_to_any(const Gifts& gifts, const std::vector<std::string>& targets) {
  return std::ranges::any_of(targets, [&](const std::string& t) { return gifts.contains(t); });
}

/// Without those whom nobody here gives anything: rings, and what lies between them.
Gifts rings_of(Gifts gifts) {
  while (true) {
    std::set<std::string> given;
    for (const auto& [source, targets] : gifts) given.insert(targets.begin(), targets.end());
    if (std::erase_if(gifts, [&](const auto& gift) { return !given.contains(gift.first); }) == 0)
      return gifts;
  }
}

}  // namespace

std::map<std::string, uint32_t> commit_rounds(const JoinGeneration& job) {
  std::set<std::string> trains;
  for (const Member& member : job.members)
    if (member.group != no_group) trains.insert(member.trainer);
  Gifts gifts;
  for (const Transfer& transfer : job.transfers)
    for (const std::string& target : transfer.targets)
      if (!transfer.peer && target != transfer.source && trains.contains(target) &&
          trains.contains(transfer.source))
        gifts[transfer.source].push_back(target);
  std::map<std::string, uint32_t> rounds;
  for (uint32_t round = 1; !gifts.empty(); ++round) {
    Gifts ready = gifts;
    std::erase_if(ready, [&](const auto& gift) { return gives_to_any(gifts, gift.second); });
    if (ready.empty()) ready = rings_of(gifts);
    for (const auto& [source, targets] : ready) {
      rounds[source] = round;
      gifts.erase(source);
    }
  }
  return rounds;
}

Result<NodeOrders> orders_of(
    const JoinGeneration& job, uint32_t shards, const std::vector<LocalTrainer>& locals,
    const std::function<std::string(uint32_t shard, uint64_t step)>& peer_segment) {
  SS_ASSIGN(const Places places, places_of(job, shards));
  Members members;
  for (const Member& member : job.members) members[member.trainer] = &member;
  const auto rounds = commit_rounds(job);
  uint32_t last_round = 0;
  for (const auto& [trainer, round] : rounds) last_round = std::max(last_round, round);
  NodeOrders orders;
  orders.fill = {job.generation, job.step, job.groups, {}};
  for (const LocalTrainer& local : locals) {
    const auto found = members.find(local.name);
    if (found == members.end() || found->second->data_address != local.data_address) continue;
    const Member& me = *found->second;
    JoinTrainer order;
    order.trainer = local.name;
    order.generation = job.generation;
    order.group = me.group;
    order.shard = me.shard;
    order.state_segment = local.state_segment;
    order.source = job.source;
    order.step = job.step;
    order.checkpoint = job.checkpoint;
    const auto round = rounds.find(local.name);
    order.commit_round = round == rounds.end() ? 0 : round->second;
    order.commit_rounds = last_round + 1;
    if (me.group != no_group) {
      order.ring = static_cast<uint32_t>(orders.fill.trainers.size());
      orders.fill.trainers.push_back({me.group, me.shard});
      order.shard_members = places.of_group[me.group];
      order.replicate_members = places.of_shard[me.shard];
    }
    for (const Transfer& transfer : job.transfers) {
      std::vector<std::string> ranks = {transfer.source};
      for (const std::string& target : transfer.targets)
        if (target != transfer.source) ranks.push_back(target);
      const auto rank = std::ranges::find(ranks, local.name);
      if (rank == ranks.end()) continue;
      SS_ASSIGN(TransferPart part,
                part_of(transfer, ranks, static_cast<size_t>(rank - ranks.begin()), members));
      if (transfer.peer && part.rank == 0) {
        part.segment = peer_segment(transfer.shard, transfer.step);
        if (part.segment.empty())
          return Status(Code::bad_data, "the peer store does not hold shard " +
                                            std::to_string(transfer.shard) + " at step " +
                                            std::to_string(transfer.step));
      }
      order.transfers.push_back(std::move(part));
    }
    std::ranges::sort(order.transfers, {}, &TransferPart::id);
    orders.trainers.push_back(std::move(order));
  }
  return orders;
}

}  // namespace simplescale
