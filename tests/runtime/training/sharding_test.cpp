#include "runtime/training/sharding.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

using namespace simplescale;

namespace {

/// What Shares promises, whatever the counts are.
void check_shares(const Shares& shares) {
  std::vector<int> computed(shares.leaves());
  uint64_t most = 0;
  for (uint64_t group = 0; group < shares.groups(); ++group) {
    // The blocks are nodes of the tree, in order; one for each binary digit 1 of the count.
    const std::vector<TreeNode>& blocks = shares.blocks()[group];
    REQUIRE(blocks.size() == static_cast<size_t>(std::popcount(shares.count(group))));
    REQUIRE(merged(blocks) == blocks);
    // In turns, the trainers compute the group's leaves in order, each the leaves that are its own.
    uint64_t next = 0;
    std::vector<uint64_t> own(shares.shards());
    const std::vector<int> turns = shares.turns(group);
    REQUIRE(std::ranges::is_sorted(turns, std::greater()));
    for (uint64_t turn = 0; turn < turns.size(); ++turn) {
      const auto size = static_cast<uint64_t>(turns[turn]);
      REQUIRE(std::has_single_bit(size));
      REQUIRE(size <= shares.wave());
      const std::vector<TreeNode> nodes = shares.turn(group, turn);
      REQUIRE(nodes.size() == std::min(shares.shards(), shares.count(group) - next));
      if (size > 1) REQUIRE(nodes.size() == shares.shards());
      for (uint64_t shard = 0; shard < nodes.size(); ++shard)
        for (uint64_t i = 0; i < size; ++i) {
          REQUIRE(shares.leaf(group, next) == nodes[shard].first() + i);
          REQUIRE(shares.shard(group, next) == shard);
          REQUIRE(shares.place(group, shard, own[shard]) == next++);
          ++computed[nodes[shard].first() + i];
          ++own[shard];
        }
      REQUIRE((size > 1 || nodes.size() * size <= shares.shards()));
    }
    REQUIRE(next == shares.count(group));
    for (uint64_t shard = 0; shard < shares.shards(); ++shard)
      REQUIRE(own[shard] == shares.count(group, shard));
    most = std::max(most, shares.count(group));
  }
  REQUIRE(shares.most_leaves() == most);
  REQUIRE(std::ranges::all_of(computed, [](int times) { return times == 1; }));
}

/// The nodes that a PartialSum has after each turn of a group: the most.
size_t most_nodes(const Shares& shares, uint64_t group) {
  std::vector<TreeNode> nodes;
  size_t most = 1;
  for (uint64_t turn = 0; turn < shares.turns(group).size(); ++turn) {
    for (const TreeNode& leaf : shares.turn(group, turn)) nodes.push_back(leaf);
    nodes = merged(nodes);
    most = std::max(most, nodes.size());
  }
  REQUIRE((nodes == shares.blocks()[group]));
  return most;
}

}  // namespace

TEST_SUITE("sharding") {
  TEST_CASE(
      "shares: for any counts, each leaf is dealt once, in blocks that are nodes of the tree") {
    std::mt19937_64 random(20261128);
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<uint64_t> counts(1 + random() % 9);
      for (uint64_t& count : counts) count = random() % 4 == 0 ? 0 : random() % 70;
      counts[random() % counts.size()] += 1;
      const Shares shares(counts, 1 + random() % 9, uint64_t{1} << random() % 5);
      CAPTURE(trial);
      REQUIRE(shares.leaves() == std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
      check_shares(shares);
      for (uint64_t group = 0; group < shares.groups(); ++group)
        REQUIRE(most_nodes(shares, group) <=
                digits_of(counts[group], shares.shards(), shares.wave()));
    }
  }

  TEST_CASE("shares: blocks are dealt in falling size, so that each begins at a multiple of it") {
    const Shares shares({5, 6, 5}, 2);
    CHECK(shares.blocks() == std::vector<std::vector<TreeNode>>{
                                 {{2, 0}, {0, 14}}, {{2, 1}, {1, 6}}, {{2, 2}, {0, 15}}});
    CHECK(shares.turn(0, 0) == std::vector<TreeNode>{{0, 0}, {0, 1}});
    CHECK(shares.turn(0, 2) == std::vector<TreeNode>{{0, 14}});
    CHECK(shares.turn(1, 2) == std::vector<TreeNode>{{0, 12}, {0, 13}});
    CHECK(shares.count(0, 1) == 2);
    const Shares waves({13}, 2, 4);
    CHECK(waves.turns(0) == std::vector<int>{4, 2, 1});
    CHECK(waves.turn(0, 0) == std::vector<TreeNode>{{2, 0}, {2, 1}});
    CHECK(waves.turn(0, 1) == std::vector<TreeNode>{{1, 4}, {1, 5}});
    CHECK(waves.turn(0, 2) == std::vector<TreeNode>{{0, 12}});
    CHECK(Shares({0, 1}, 2).turns(0) == std::vector<int>{1});
    CHECK(Shares({0, 1}, 2).turn(0, 0).empty());
  }

  TEST_CASE("shares: even ones differ by at most one leaf of a trainer") {
    for (uint64_t groups = 1; groups <= 7; ++groups)
      for (uint64_t shards = 1; shards <= 5; ++shards)
        for (uint64_t leaves = 1; leaves <= 80; ++leaves) {
          const Shares shares = Shares::even(leaves, groups, shards, leaves % 3 == 0 ? 4 : 1);
          INFO("groups = ", groups, ", shards = ", shards, ", leaves = ", leaves);
          REQUIRE(shares.leaves() == leaves);
          check_shares(shares);
          const uint64_t least = leaves / (groups * shards);
          for (uint64_t group = 0; group < groups; ++group)
            for (uint64_t shard = 0; shard < shards; ++shard) {
              const uint64_t more = shares.count(group, shard) - least;
              REQUIRE((more == 1) == (group * shards + shard < leaves % (groups * shards)));
              REQUIRE(more <= 1);
            }
        }
  }

  TEST_CASE(
      "shares: by weight, the slowest group ends as early as it can; equal weights are even") {
    std::mt19937 random(11);
    for (int i = 0; i < 400; ++i) {
      const uint64_t groups = 1 + random() % 9, shards = 1 + random() % 9,
                     leaves = 1 + random() % 300, wave = uint64_t{1} << random() % 4;
      INFO("i = ", i, ", groups = ", groups, ", shards = ", shards, ", leaves = ", leaves);
      const Shares even = Shares::even(leaves, groups, shards, wave);
      const std::vector<uint32_t> equal(groups, 1 + random() % 1000);
      REQUIRE(Shares::by_weight(leaves, equal, groups, shards, wave) == even);
      REQUIRE(Shares::by_weight(leaves, {}, groups, shards, wave) == even);
      std::vector<uint32_t> weights;
      for (uint64_t group = 0; group < groups; ++group) weights.push_back(1 + random() % 1000);
      const Shares shares = Shares::by_weight(leaves, weights, groups, shards, wave);
      check_shares(shares);
      REQUIRE(shares.leaves() == leaves);
      REQUIRE(shares.digits() <= digits_of_any_groups(leaves, groups, shards));
      const auto slowest = [&](const Shares& s) {  // the time of a step
        double most = 0;
        for (uint64_t group = 0; group < groups; ++group)
          most = std::max(most, static_cast<double>(s.count(group, 0)) / weights[group]);
        return most;
      };
      const double time = slowest(shares);
      REQUIRE(time <= slowest(even));
      // In less time the groups end fewer turns, although each of them ends one if there are enough.
      const uint64_t turns = (leaves + shards - 1) / shards;
      uint64_t ended = 0;
      for (const uint32_t weight : weights) {
        const auto before = static_cast<uint64_t>(std::ceil(time * weight * (1 - 1e-9))) - 1;
        ended += turns >= groups ? std::max<uint64_t>(1, before) : before;
      }
      if (turns >= groups && ended >= turns) {
        // Only a first turn of a slow group may take that long.
        double of_ones = 0;
        for (const uint32_t weight : weights) of_ones = std::max(of_ones, 1.0 / weight);
        REQUIRE(of_ones >= time);
      }
      for (uint64_t group = 0; turns >= groups && group < groups; ++group)
        REQUIRE(shares.count(group) > 0);
    }
    // One of eight nodes at 0.6 of the speed, 16 leaves each.
    const std::vector<uint32_t> slow{1000, 1000, 1000, 600, 1000, 1000, 1000, 1000};
    const Shares shares = Shares::by_weight(128, slow, 8, 1);
    CHECK(shares.count(3) == 10);
    CHECK(shares.most_leaves() == 17);
  }

  TEST_CASE("shares: buffers suffice for any number of groups, and none is idle with 2^n shards") {
    for (const uint64_t shards : {1, 2, 3, 4, 6, 8})
      for (uint64_t leaves = 1; leaves <= 200; ++leaves) {
        const uint64_t wave = uint64_t{1} << leaves % 4;
        size_t of_any = 1;
        for (uint64_t groups = 1; groups <= 9; ++groups) {
          const Shares shares = Shares::even(leaves, groups, shards, wave);
          size_t needed = 1;
          for (uint64_t group = 0; group < groups; ++group)
            needed = std::max(needed, most_nodes(shares, group));
          INFO("shards = ", shards, ", leaves = ", leaves, ", groups = ", groups);
          const size_t digits = shares.digits();
          REQUIRE(digits == digits_of_groups(leaves, groups, shards, wave));
          REQUIRE(digits >= needed);
          if (std::has_single_bit(shards)) REQUIRE(digits == needed);
          of_any = std::max(of_any, Shares::even(leaves, groups, shards).digits());
          REQUIRE(digits_of_any_groups(leaves, groups, shards) >= std::max(of_any, digits));
          if (leaves % shards == 0) REQUIRE(digits_of_any_groups(leaves, groups, shards) == of_any);
        }
      }
    CHECK(digits_of_any_groups(7, 2, 4) == 3);  // a bound: 7 = a turn of 4 and a part with 2 digits
    CHECK(digits_of(uint64_t{1} << 40, 3) == 40);
    CHECK(digits_of((uint64_t{1} << 40) - 1, 1) == 40);
  }
}
