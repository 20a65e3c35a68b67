#include "actors/supervisor/transfers.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace simplescale::supervisor {
namespace {

/// The same transfers; each is in the first round in which none of its trainers has another one.
std::vector<Transfer> in_rounds(std::vector<Transfer> transfers) {
  std::map<std::string, std::set<size_t>> busy;  // by trainer
  std::map<size_t, std::vector<Transfer>> rounds;
  for (Transfer& transfer : transfers) {
    std::vector<std::string> members = transfer.targets;
    members.push_back(transfer.source);
    size_t round = 0;
    while (
        std::ranges::any_of(members, [&](const auto& name) { return busy[name].contains(round); }))
      ++round;
    for (const std::string& name : members) busy[name].insert(round);
    rounds[round].push_back(std::move(transfer));
  }
  transfers.clear();
  for (auto& [round, list] : rounds)
    for (Transfer& transfer : list) {
      transfer.id = static_cast<uint32_t>(transfers.size());
      transfers.push_back(std::move(transfer));
    }
  return transfers;
}

}  // namespace

std::vector<Transfer> transfers_of(const std::vector<Unit>& units,
                                   const std::vector<job::Move>& moves,
                                   const std::vector<job::Place>& places, uint32_t shards) {
  std::map<std::string, uint32_t> shard_of;
  for (const job::Place& place : places) shard_of[place.trainer] = place.shard;
  std::vector<Transfer> transfers;
  for (const job::Move& move : moves) {
    std::map<uint32_t, std::vector<std::string>> targets;  // by the shard of their places
    if (move.shards == shards)
      targets[move.shard] = move.targets;
    else
      for (const std::string& target : move.targets) targets[shard_of.at(target)].push_back(target);
    for (auto& [shard, names] : targets)
      if (move.shards == shards ||
          !common_pieces(units, move.shards, move.shard, shards, shard).empty())
        transfers.push_back(
            {0, move.shard, move.step, move.source, move.peer, std::move(names), move.shards});
  }
  return in_rounds(std::move(transfers));
}

}  // namespace simplescale::supervisor
