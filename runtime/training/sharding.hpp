// How parameters are sharded inside a group, and which leaves of a step each trainer computes.
// Groups are replicas of each other. Pure functions and data, any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/training/tree_sum.hpp"

namespace simplescale {

enum class Sharding : unsigned char {
  full_shard,     // a unit is gathered for forward, freed, and gathered again for backward
  shard_grad_op,  // a unit is gathered once per step; gradients and optimizer state are sharded
  no_shard,       // a group is one trainer; nothing is gathered
};

/// The leaves of a step (micro-batches; tree_sum.hpp), dealt to groups and to the trainers in them.
/// A leaf's index determines its samples (sample_order.hpp). Dataloader, engine and ledger must
/// deal alike, so all of them use this class.
///
/// A group gets one block of 2^n consecutive leaves for each binary digit 1 of its number of
/// leaves. All blocks are dealt in falling size, so each begins at a multiple of its size: it is a
/// node of the tree, and a trainer has popcount(leaves) partial sums to exchange with other groups.
///
/// A group computes its leaves in turns, because its trainers gather and reduce together. In a turn
/// each trainer computes as many consecutive leaves, 2^n of them and at most `wave`: a node of the
/// tree. Shard s computes the s-th node of the group's next leaves. Turns fall in size; in the last
/// one, of one leaf each, the last shards may have none. A group without leaves has one turn, in
/// which no trainer has one.
class Shares {
 public:
  Shares() = default;
  /// counts: leaves of each group, in all at least one. shards: trainers of a group. wave: a power
  /// of two.
  Shares(std::vector<uint64_t> counts, uint64_t shards, uint64_t wave = 1);
  /// As even as possible: the numbers of leaves of two trainers differ by at most one.
  static Shares even(uint64_t leaves, uint64_t groups, uint64_t shards, uint64_t wave = 1);
  /// By the speed of each group: whole turns of `shards` leaves are dealt one after the other to the
  /// group that would end its turns first, (turns + 1) / weight, so that the slowest one ends as
  /// early as possible. First each group gets one turn, the fastest ones first: a group without a
  /// leaf could not show that it is fast again. Equal weights deal as even() does. weights: of each
  /// group, positive; empty: all equal.
  static Shares by_weight(uint64_t leaves, std::span<const uint32_t> weights, uint64_t groups,
                          uint64_t shards, uint64_t wave = 1);

  /// Leaves of a group, and of the trainer of `shard` in it.
  uint64_t count(uint64_t group) const { return counts_[group]; }
  uint64_t count(uint64_t group, uint64_t shard) const {
    return (counts_[group] + shards_ - 1 - shard) / shards_;
  }
  /// Leaves that each trainer of the group has in each of its turns.
  std::vector<int> turns(uint64_t group) const;
  /// The most leaves of a group.
  uint64_t most_leaves() const;
  /// The most partial sums that a trainer ever holds (digits_of()).
  size_t digits() const;
  /// The group's i-th leaf, and the k-th of the trainer of `shard`.
  uint64_t leaf(uint64_t group, uint64_t i) const;
  uint64_t leaf(uint64_t group, uint64_t shard, uint64_t k) const {
    return leaf(group, place(group, shard, k));
  }
  /// The k-th leaf of the trainer of `shard` is the place-th of its group.
  uint64_t place(uint64_t group, uint64_t shard, uint64_t k) const;
  /// Whose the group's i-th leaf is.
  uint64_t shard(uint64_t group, uint64_t i) const;
  /// The nodes of a turn: of the first shards, in their order.
  std::vector<TreeNode> turn(uint64_t group, uint64_t turn) const;
  /// The blocks of each group, in order.
  const std::vector<std::vector<TreeNode>>& blocks() const { return blocks_; }
  uint64_t groups() const { return counts_.size(); }
  uint64_t shards() const { return shards_; }
  uint64_t leaves() const { return leaves_; }
  uint64_t wave() const { return wave_; }
  bool operator==(const Shares&) const = default;

 private:
  std::vector<uint64_t> counts_;
  uint64_t shards_ = 1, leaves_ = 0, wave_ = 1;
  std::vector<std::vector<TreeNode>> blocks_;

  /// Turns of one size: the group's leaves from `first` on, `count` turns of `size` leaves a trainer.
  struct Turns {
    uint64_t first, count, size;
    uint64_t end(uint64_t shards) const { return first + count * size * shards; }
    bool operator==(const Turns&) const = default;
  };
  std::vector<Turns> turns_of(uint64_t group) const;
  std::vector<std::vector<Turns>> turns_;  // turns_of() each group
};

/// True for what Shares::by_weight() accepts: positive numbers without too many digits.
inline bool are_weights(std::span<const uint32_t> weights) {
  return std::ranges::all_of(weights, [](uint32_t w) { return w > 0 && w <= 1'000'000; });
}

/// The most partial sums ("digits") that a trainer ever holds of a group that has `count` leaves.
/// It holds popcount(n) of them after the group's first n leaves. Exact if shards is a power of
/// two, else an upper bound.
size_t digits_of(uint64_t count, uint64_t shards, uint64_t wave = 1);
/// The largest digits_of() of Shares::even().
size_t digits_of_groups(uint64_t leaves, uint64_t groups, uint64_t shards, uint64_t wave = 1);
/// The largest Shares::digits() for 1 to `groups` groups with any weights and waves, or an upper
/// bound.
size_t digits_of_any_groups(uint64_t leaves, uint64_t groups, uint64_t shards);

}  // namespace simplescale
