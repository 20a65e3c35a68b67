#include "transport/collective/plan.hpp"

#include <algorithm>

#include "runtime/base/status.hpp"

namespace simplescale::collective {

namespace {

constexpr uint16_t kGather = 0xffff;  // phase of results; summands have phases from 0

const std::byte* bytes_at(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

/// The part of `count` elements that a rank sums: equal slices of whole cache lines.
struct Slice {
  size_t begin, count;
};
Slice slice_of(int rank, int size, size_t count) {
  const size_t ranks = static_cast<size_t>(size);
  const size_t length = ((count + ranks - 1) / ranks + 31) / 32 * 32;
  const size_t begin = std::min(count, static_cast<size_t>(rank) * length);
  return {begin, std::min(length, count - begin)};
}

/// Gathers the summed slices: `whole` (count elements) holds this rank's slice; sends it to all
/// ranks and receives theirs.
void gather_slices(Plan& plan, int rank, int size, void* whole, size_t count, size_t element) {
  const Slice mine = slice_of(rank, size, count);
  plan.sends.push_back(
      {kGather, kOthers, bytes_at(whole, mine.begin * element), mine.count * element, true});
  for (int i = 1; i < size; ++i) {
    const int from = (rank + i) % size;
    const Slice theirs = slice_of(from, size, count);
    plan.copies.push_back(
        {kGather, from, bytes_at(whole, theirs.begin * element), theirs.count * element});
  }
}

Sum sum_of_ranks(int rank, int size, std::span<const TreeNode> leaf_of_rank, const void* mine,
                 size_t count, DType dtype) {
  Sum sum;
  sum.count = count;
  sum.dtype = dtype;
  const int ranks = leaf_of_rank.empty() ? size : static_cast<int>(leaf_of_rank.size());
  for (int i = 0; i < ranks; ++i) {
    const TreeNode node = leaf_of_rank.empty() ? TreeNode{0, static_cast<uint64_t>(i)}
                                               : leaf_of_rank[static_cast<size_t>(i)];
    sum.summands.push_back({node, 0, i, i == rank ? bytes_at(mine, 0) : nullptr});
  }
  return sum;
}

/// Sends part p of `full` (count elements each) to rank p and sums this rank's part. Ranks that
/// have no leaf send nothing.
Plan exchange_parts(const char* name, int rank, int size, const void* full, size_t count,
                    DType dtype, std::span<const TreeNode> leaf_of_rank) {
  Plan plan;
  plan.name = name;
  const size_t bytes = count * bytes_of(dtype);
  const bool has_leaf = leaf_of_rank.empty() || static_cast<size_t>(rank) < leaf_of_rank.size();
  for (int i = 1; has_leaf && i < size; ++i) {
    const int to = (rank + i) % size;
    plan.sends.push_back({0, to, bytes_at(full, static_cast<size_t>(to) * bytes), bytes, false});
  }
  plan.sum = sum_of_ranks(rank, size, leaf_of_rank,
                          bytes_at(full, static_cast<size_t>(rank) * bytes), count, dtype);
  return plan;
}

}  // namespace

Plan plan_all_gather(int rank, int size, const void* mine, void* all, size_t bytes) {
  Plan plan;
  plan.name = "all_gather";
  plan.sends.push_back({0, kOthers, bytes_at(mine, 0), bytes, false});
  for (int i = 1; i < size; ++i) {
    const int from = (rank + i) % size;
    plan.copies.push_back({0, from, bytes_at(all, static_cast<size_t>(from) * bytes), bytes});
  }
  plan.local_from = bytes_at(mine, 0);
  plan.local_to = bytes_at(all, static_cast<size_t>(rank) * bytes);
  plan.local_bytes = bytes;
  return plan;
}

Plan plan_broadcast(int rank, void* data, size_t bytes, int root) {
  Plan plan;
  plan.name = "broadcast";
  if (rank == root)
    plan.sends.push_back({0, kOthers, bytes_at(data, 0), bytes, false});
  else
    plan.copies.push_back({0, root, bytes_at(data, 0), bytes});
  return plan;
}

Plan plan_barrier(int rank, int size) {
  std::vector<std::byte> scratch(static_cast<size_t>(size) + 1);
  Plan plan = plan_all_gather(rank, size, scratch.data() + size, scratch.data(), 1);
  plan.name = "barrier";
  plan.scratch = std::move(scratch);
  return plan;
}

Plan plan_reduce_scatter(int rank, int size, const void* full, void* shard, size_t count,
                         DType dtype) {
  Plan plan = exchange_parts("reduce_scatter", rank, size, full, count, dtype, {});
  plan.sum.total = bytes_at(shard, 0);
  return plan;
}

Plan plan_reduce_scatter_leaves(int rank, int size, const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice) {
  SS_ASSERT(!leaf_of_rank.empty() && leaf_of_rank.size() <= static_cast<size_t>(size));
  SS_ASSERT(slice.count() == count);
  Plan plan = exchange_parts("reduce_scatter_leaves", rank, size, full, count, dtype, leaf_of_rank);
  std::stable_sort(
      plan.sum.summands.begin(), plan.sum.summands.end(),
      [](const Summand& a, const Summand& b) { return a.node.first() < b.node.first(); });
  plan.sum.partial = &slice;
  return plan;
}

Plan plan_all_reduce(int rank, int size, void* data, size_t count, DType dtype) {
  Plan plan;
  const size_t element = bytes_of(dtype);
  if (count * element <= kSmallBytes) {
    plan.sends.push_back({0, kOthers, bytes_at(data, 0), count * element, false});
    plan.sum = sum_of_ranks(rank, size, {}, data, count, dtype);
    plan.sum.total = bytes_at(data, 0);
  } else {
    // In place: this rank receives the result of a slice only after the slice's owner has read this
    // rank's data of it.
    for (int i = 1; i < size; ++i) {
      const int to = (rank + i) % size;
      const Slice theirs = slice_of(to, size, count);
      plan.sends.push_back(
          {0, to, bytes_at(data, theirs.begin * element), theirs.count * element, false});
    }
    const Slice mine = slice_of(rank, size, count);
    std::byte* part = bytes_at(data, mine.begin * element);
    plan.sum = sum_of_ranks(rank, size, {}, part, mine.count, dtype);
    plan.sum.total = part;
    gather_slices(plan, rank, size, data, count, element);
  }
  plan.name = "all_reduce";
  return plan;
}

Plan plan_all_reduce_partials(int rank, int size, const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank, float* total) {
  SS_ASSERT(nodes_of_rank.size() == static_cast<size_t>(size));
  SS_ASSERT(std::ranges::equal(nodes_of_rank[static_cast<size_t>(rank)], mine.nodes()));
  const size_t count = mine.count();
  size_t nodes = 0;
  for (const auto& of_rank : nodes_of_rank) nodes += of_rank.size();
  SS_ASSERT(nodes > 0);
  const bool small = nodes * count * sizeof(float) <= 2 * kSmallBytes;

  Plan plan;
  plan.name = "all_reduce_partials";
  const Slice part = small ? Slice{0, count} : slice_of(rank, size, count);
  plan.sum.count = part.count;
  plan.sum.dtype = DType::f32;
  plan.sum.total = bytes_at(static_cast<void*>(total), part.begin * sizeof(float));
  for (int from = 0; from < size; ++from) {
    const auto& of_rank = nodes_of_rank[static_cast<size_t>(from)];
    for (size_t i = 0; i < of_rank.size(); ++i)
      plan.sum.summands.push_back(
          {of_rank[i], static_cast<uint16_t>(i), from,
           from == rank ? bytes_at(mine.data(i), part.begin * sizeof(float)) : nullptr});
  }
  std::stable_sort(
      plan.sum.summands.begin(), plan.sum.summands.end(),
      [](const Summand& a, const Summand& b) { return a.node.first() < b.node.first(); });
  for (size_t i = 0; i < mine.nodes().size(); ++i) {
    if (small) {
      plan.sends.push_back({static_cast<uint16_t>(i), kOthers, bytes_at(mine.data(i), 0),
                            count * sizeof(float), false});
      continue;
    }
    for (int k = 1; k < size; ++k) {
      const int to = (rank + k) % size;
      const Slice theirs = slice_of(to, size, count);
      plan.sends.push_back({static_cast<uint16_t>(i), to,
                            bytes_at(mine.data(i), theirs.begin * sizeof(float)),
                            theirs.count * sizeof(float), false});
    }
  }
  if (!small) gather_slices(plan, rank, size, total, count, sizeof(float));
  return plan;
}

}  // namespace simplescale::collective
