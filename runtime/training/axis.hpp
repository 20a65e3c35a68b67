// The axes on which the trainers of a generation differ. Plain data, any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

/// Names of axes, also in JoinTrainer. The shards of a group; the replicas of a shard.
inline constexpr const char *kShardAxis = "shard", *kReplicateAxis = "replicate";

/// The trainers that differ from this one in their place on that axis only.
struct Axis {
  std::string name;
  Collective* members = nullptr;  // rank: the place
};

/// Innermost first: a trainer's rank in the world is its place on the first axis, plus that axis's size
/// times its place on the others. All trainers of a generation have the same axes.
using Axes = std::vector<Axis>;

inline Axes axes_of(Collective& shard, Collective& replicate) {
  return {{kShardAxis, &shard}, {kReplicateAxis, &replicate}};
}
/// The axis has this name.
inline Collective& members_of(const Axes& axes, std::string_view name) {
  const auto axis = std::ranges::find(axes, name, &Axis::name);
  SS_ASSERT(axis != axes.end());
  return *axis->members;
}

/// A trainer's place in the world.
struct WorldRank {
  uint64_t rank = 0, size = 1;
};
inline WorldRank world_of(const Axes& axes) {
  WorldRank world;
  for (const Axis& axis : axes) {
    world.rank += world.size * static_cast<uint64_t>(axis.members->rank());
    world.size *= static_cast<uint64_t>(axis.members->size());
  }
  return world;
}

/// The records of all ranks of the world, in rank order: (size, own.size()). Blocks; all ranks call it
/// together, with as many records. T: plain data.
template <class T>
Result<std::vector<T>> gather_world(const Axes& axes, const std::vector<T>& own) {
  std::vector<T> all = own;
  for (const Axis& axis : axes) {
    std::vector<T> wider(all.size() * static_cast<size_t>(axis.members->size()));
    SS_RETURN_IF_ERROR(
        axis.members->all_gather_bytes(all.data(), wider.data(), all.size() * sizeof(T))->wait());
    all = std::move(wider);
  }
  return all;
}

}  // namespace simplescale
