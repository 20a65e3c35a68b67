// The transfers with which a generation of another cut begins: what is sent, and how much.
#include "actors/supervisor/transfers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/actors/peer/tiny_shape.hpp"

using namespace simplescale;
using namespace simplescale::job;
using supervisor::transfers_of;

namespace {

struct Cut {
  uint32_t groups, shards;
};

std::string name_of(size_t trainer) {
  return "n" + std::to_string(trainer) + ".0";
}

std::vector<Place> places_of(const Cut& cut) {
  std::vector<Place> places;
  for (uint32_t rank = 0; rank < cut.groups * cut.shards; ++rank)
    places.push_back({name_of(rank), rank / cut.shards, rank % cut.shards});
  return places;
}

size_t elements_of(const std::vector<Piece>& pieces) {
  size_t elements = 0;
  for (const Piece& piece : pieces) elements += piece.count;
  return elements;
}

/// Elements that move from one cut to the other between trainers.
struct Sent {
  size_t pieces = 0, whole_shards = 0;
  size_t missing = 0;  // of the new shards: what no trainer holds itself
};

/// Checks that every element of every new shard comes once. from: the trainers that hold the old cut are
/// the first ones, but for those that are lost.
Sent move(const std::vector<Unit>& units, const Cut& from, const Cut& to,
          const std::set<std::string>& lost = {}) {
  std::vector<AvailableCopy> copies;
  std::map<std::string, uint32_t> held;
  for (const Place& place : places_of(from))
    if (!lost.contains(place.trainer)) {
      copies.push_back({place.trainer, place.shard, 7, false, from.shards});
      held[place.trainer] = place.shard;
    }
  const std::vector<Place> places = places_of(to);
  const std::vector<Move> moves = moves_for(places, to.shards, copies, {7, from.shards});
  const std::vector<Transfer> transfers = transfers_of(units, moves, places, to.shards);
  std::map<std::string, std::vector<Piece>> got;
  Sent sent;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    CHECK(transfer.id == i);
    REQUIRE(!transfer.targets.empty());
    for (const std::string& target : transfer.targets) {
      const uint32_t shard = std::ranges::find(places, target, &Place::trainer)->shard;
      const auto pieces = common_pieces(units, transfer.shards, transfer.shard, to.shards, shard);
      got[target].insert(got[target].end(), pieces.begin(), pieces.end());
      if (target == transfer.source) continue;
      sent.pieces += elements_of(pieces);
      sent.whole_shards += shard_layout(units, from.shards).total;
    }
  }
  for (const Place& place : places) {
    std::vector<Piece> own;
    for (uint32_t shard = 0; shard < from.shards; ++shard) {
      const auto pieces = common_pieces(units, from.shards, shard, to.shards, place.shard);
      own.insert(own.end(), pieces.begin(), pieces.end());
      if (!held.contains(place.trainer) || held[place.trainer] != shard)
        sent.missing += elements_of(pieces);
    }
    std::ranges::sort(own, {}, &Piece::to);
    std::ranges::sort(got[place.trainer], {}, &Piece::to);
    CHECK(got[place.trainer] == own);
  }
  return sent;
}

}  // namespace

TEST_SUITE("transfers") {
  TEST_CASE("transfers: RESHAPE-1, only what a trainer lacks is sent to it") {
    const std::vector<Unit> units = units_of({.dim = 2048,
                                              .hidden = 5632,
                                              .layers = 22,
                                              .heads = 32,
                                              .kv_heads = 4,
                                              .vocab = 32'000,
                                              .block_size = 2048});
    for (const auto& [from, to] : {std::pair{Cut{1, 2}, Cut{1, 3}},
                                   {{1, 3}, {1, 2}},
                                   {{1, 4}, {1, 3}},
                                   {{2, 2}, {1, 3}},
                                   {{2, 2}, {3, 1}},
                                   {{3, 1}, {2, 2}},
                                   {{2, 8}, {1, 7}}}) {
      CAPTURE(from.shards);
      CAPTURE(to.shards);
      const Sent sent = move(units, from, to);
      CHECK(sent.pieces == sent.missing);
      MESSAGE(from.groups << " x " << from.shards << " to " << to.groups << " x " << to.shards
                          << ": " << sent.pieces << " elements instead of " << sent.whole_shards);
      CHECK(sent.pieces <= sent.whole_shards);  // whole shards are all pieces of a shard of one
    }
    // n3 is lost: three groups of a whole shard each; n0 to n2 lack half of it.
    const Sent three = move(units, {2, 2}, {3, 1}, {"n3.0"});
    CHECK(three.pieces == three.missing);
  }

  TEST_CASE("transfers: RESHAPE-1, every element of every new shard comes once, for any cuts") {
    std::mt19937 random(7);
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<Unit> units;
      for (size_t unit = 0; unit <= random() % 4; ++unit)
        units.push_back({"u", {}, 1 + random() % (20 * kShardAlign)});
      const Cut from{1 + static_cast<uint32_t>(random() % 3),
                     1 + static_cast<uint32_t>(random() % 9)};
      Cut to = from;
      while (to.shards == from.shards)
        to = {1 + static_cast<uint32_t>(random() % 3), 1 + static_cast<uint32_t>(random() % 9)};
      const Sent sent = move(units, from, to);
      CHECK(sent.pieces == sent.missing);
    }
  }

  TEST_CASE("transfers: those of trainers that have none in common do not wait for each other") {
    const std::vector<Unit> units = {{"u", {}, 56 * kShardAlign}};
    const std::vector<Place> places = places_of({1, 7});
    std::vector<AvailableCopy> copies;
    for (const Place& place : places_of({1, 8}))
      copies.push_back({place.trainer, place.shard, 7, false, 8});
    const auto transfers = transfers_of(units, moves_for(places, 7, copies, {7, 8}), places, 7);
    std::map<std::string, size_t> done;  // by trainer: so many transfers, one after the other
    size_t longest = 0;
    for (const Transfer& transfer : transfers) {
      std::vector<std::string> members = transfer.targets;
      members.push_back(transfer.source);
      size_t when = 0;
      for (const std::string& name : members) when = std::max(when, done[name]);
      for (const std::string& name : members) done[name] = when + 1;
      longest = std::max(longest, when + 1);
    }
    CHECK(transfers.size() == 14);
    CHECK(longest <= 4);
  }

  TEST_CASE("transfers: a shard of the same cut is one transfer, and goes on to no trainer again") {
    const std::vector<Unit> units = units_of(tiny_shape());
    const std::vector<Move> moves = {{1, 7, "n1.0", false, {"n3.0", "n5.0"}, 2},
                                     {0, 7, "n0", true, {}, 2}};  // agents save
    CHECK(transfers_of(units, moves, places_of({3, 2}), 2) ==
          std::vector<Transfer>{{0, 1, 7, "n1.0", false, {"n3.0", "n5.0"}, 2},
                                {1, 0, 7, "n0", true, {}, 2}});
  }
}
