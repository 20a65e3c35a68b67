#include "runtime/training/sharding.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>
#include <utility>

#include "runtime/base/status.hpp"

namespace simplescale {
namespace {

/// Leaves of a group in Shares::even(): the trainers in rank order have one more while leaves are
/// left.
uint64_t even_count(uint64_t leaves, uint64_t groups, uint64_t shards, uint64_t group) {
  const uint64_t world = groups * shards, rest = leaves % world, before = group * shards;
  return leaves / world * shards + std::min(shards, std::max(rest, before) - before);
}

}  // namespace

Shares::Shares(std::vector<uint64_t> counts, uint64_t shards, uint64_t wave)
    : counts_(std::move(counts)),
      shards_(shards),
      leaves_(std::accumulate(counts_.begin(), counts_.end(), uint64_t{0})),
      wave_(wave),
      blocks_(counts_.size()) {
  SS_ASSERT(leaves_ > 0 && shards_ > 0 && std::has_single_bit(wave_));
  uint64_t next = 0;
  for (auto level = static_cast<uint32_t>(std::bit_width(leaves_)); level-- > 0;)
    for (size_t group = 0; group < counts_.size(); ++group) {
      if ((counts_[group] >> level) % 2 == 0) continue;
      blocks_[group].push_back({level, next >> level});
      next += uint64_t{1} << level;
    }
  for (uint64_t group = 0; group < groups(); ++group) turns_.push_back(turns_of(group));
}

Shares Shares::even(uint64_t leaves, uint64_t groups, uint64_t shards, uint64_t wave) {
  std::vector<uint64_t> counts;
  for (uint64_t group = 0; group < groups; ++group)
    counts.push_back(even_count(leaves, groups, shards, group));
  return {std::move(counts), shards, wave};
}

Shares Shares::by_weight(uint64_t leaves, std::span<const uint32_t> weights, uint64_t groups,
                         uint64_t shards, uint64_t wave) {
  if (weights.empty()) return even(leaves, groups, shards, wave);
  SS_ASSERT(weights.size() == groups && are_weights(weights));
  std::vector<uint64_t> turns(groups);
  const auto later = [&](size_t a, size_t b) {
    if ((turns[a] == 0) != (turns[b] == 0)) return turns[a] > 0;
    const uint64_t ends_a = (turns[a] + 1) * weights[b], ends_b = (turns[b] + 1) * weights[a];
    return ends_a != ends_b ? ends_a > ends_b : a > b;
  };
  std::vector<size_t> all(groups);
  std::iota(all.begin(), all.end(), size_t{0});
  std::priority_queue next(later, std::move(all));
  size_t last = 0;
  for (uint64_t dealt = 0; dealt < leaves; dealt += shards) {
    last = next.top();
    next.pop();
    ++turns[last];
    next.push(last);
  }
  const uint64_t missing = (shards - leaves % shards) % shards;  // in the last turn
  for (uint64_t& count : turns) count *= shards;
  turns[last] -= missing;
  return {std::move(turns), shards, wave};
}

size_t Shares::digits() const {
  size_t most = 1;
  for (const uint64_t count : counts_) most = std::max(most, digits_of(count, shards_, wave_));
  return most;
}

uint64_t Shares::most_leaves() const {
  return *std::ranges::max_element(counts_);
}

/// A turn's nodes are aligned: before it lie whole turns of its size or larger ones, and blocks fall
/// in size, so its leaves lie in blocks of at least its size.
std::vector<Shares::Turns> Shares::turns_of(uint64_t group) const {
  std::vector<Turns> all;
  uint64_t first = 0;
  for (uint64_t size = wave_; size > 0; size /= 2) {
    const uint64_t left = counts_[group] - first;
    const uint64_t count = size > 1 ? left / (size * shards_) : (left + shards_ - 1) / shards_;
    if (count > 0) all.push_back({first, count, size});
    first += std::min(left, count * size * shards_);
  }
  if (all.empty()) all.push_back({0, 1, 1});
  return all;
}

std::vector<int> Shares::turns(uint64_t group) const {
  std::vector<int> sizes;
  for (const Turns& turns : turns_[group])
    sizes.insert(sizes.end(), turns.count, static_cast<int>(turns.size));
  return sizes;
}

uint64_t Shares::place(uint64_t group, uint64_t shard, uint64_t k) const {
  for (const Turns& turns : turns_[group]) {
    if (k < turns.count * turns.size)
      return turns.first + (k / turns.size * shards_ + shard) * turns.size + k % turns.size;
    k -= turns.count * turns.size;
  }
  SS_ASSERT(false);
  return 0;
}

uint64_t Shares::shard(uint64_t group, uint64_t i) const {
  for (const Turns& turns : turns_[group])
    if (i < turns.end(shards_)) return (i - turns.first) / turns.size % shards_;
  SS_ASSERT(false);
  return 0;
}

uint64_t Shares::leaf(uint64_t group, uint64_t i) const {
  SS_ASSERT(i < counts_[group]);
  auto block = blocks_[group].begin();
  for (; i >= uint64_t{1} << block->level; ++block) i -= uint64_t{1} << block->level;
  return block->first() + i;
}

std::vector<TreeNode> Shares::turn(uint64_t group, uint64_t turn) const {
  std::vector<TreeNode> nodes;
  for (const Turns& turns : turns_[group]) {
    if (turn >= turns.count) {
      turn -= turns.count;
      continue;
    }
    const auto level = static_cast<uint32_t>(std::countr_zero(turns.size));
    const uint64_t first = turns.first + turn * shards_ * turns.size;
    for (uint64_t shard = 0; shard < shards_ && first + shard * turns.size < counts_[group];
         ++shard)
      nodes.push_back({level, leaf(group, first + shard * turns.size) >> level});
    break;
  }
  return nodes;
}

size_t digits_of(uint64_t count, uint64_t shards, uint64_t wave) {
  // The first n leaves are whole turns of `wave` leaves a trainer, so n is a multiple of every power
  // of two that divides such a turn; then at most one turn of each smaller size; then they are all.
  const uint64_t turn = shards * wave, whole = count / turn * turn;
  int most = std::max(std::popcount(count),
                      static_cast<int>(std::bit_width((whole >> std::countr_zero(turn)) + 1)) - 1);
  for (uint64_t smaller = turn / 2; smaller >= shards; smaller /= 2)
    most = std::max(most, std::popcount(count / smaller * smaller));
  return static_cast<size_t>(std::max(1, most));
}

size_t digits_of_groups(uint64_t leaves, uint64_t groups, uint64_t shards, uint64_t wave) {
  // From the first group on: whole turns more, a part of a turn more, nothing more.
  const uint64_t part = leaves % (groups * shards) / shards;
  size_t digits = 1;
  for (const uint64_t group : {uint64_t{0}, part, groups - 1})
    digits = std::max(digits, digits_of(even_count(leaves, groups, shards, group), shards, wave));
  return digits;
}

size_t digits_of_any_groups(uint64_t leaves, uint64_t groups, uint64_t shards) {
  if (groups == 1) return digits_of(leaves, shards);
  // A group has whole turns, or those and the part of a turn that is left: below the bits of a whole
  // turn that are 0 its number of leaves has no bit, or those of `leaves`.
  const int zeros = std::countr_zero(shards);
  const uint64_t part = leaves & ((uint64_t{1} << zeros) - 1);
  return static_cast<size_t>(std::max(
      1, static_cast<int>(std::bit_width((leaves >> zeros) + 1)) - 1 + std::popcount(part)));
}

}  // namespace simplescale
