// What a collective does, as data: which bytes go to which rank, what is summed in which order,
// which bytes come from which rank. Each operation is a pure function that returns its plan;
// operation.hpp executes plans over any kind of link, transport/nccl over NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/training/tree_sum.hpp"

namespace simplescale::collective {

constexpr int kOthers = -1;  ///< all ranks but this one

/// A stream to one rank, or to all others.
struct Outgoing {
  uint16_t phase;
  int to;  ///< a rank, or kOthers
  const std::byte* data;
  size_t bytes;
  bool after_sum;  ///< the data is the sum's result, sent as it becomes ready
};

/// A stream from a rank, copied to memory.
struct Incoming {
  uint16_t phase;
  int from;
  std::byte* to;
  size_t bytes;
};

/// A summand: this rank's `data`, or if that is null the stream `phase` of rank `from`.
struct Summand {
  TreeNode node;
  uint16_t phase;
  int from;
  const std::byte* data;
};

/// The sum goes into `total`, or is added to `partial`.
struct Sum {
  std::vector<Summand> summands;  ///< in leaf order
  size_t count = 0;               ///< elements of each summand
  DType dtype = DType::f32;       ///< of the summands and of total
  std::byte* total = nullptr;
  PartialSum* partial = nullptr;
};

struct Plan {
  const char* name = "";
  std::vector<Outgoing> sends;
  Sum sum;
  std::vector<Incoming> copies;
  /// This rank's own part, copied locally.
  const std::byte* local_from = nullptr;
  std::byte* local_to = nullptr;
  size_t local_bytes = 0;
  std::vector<std::byte> scratch;  ///< for operations without the caller's buffers (barrier)
};

/// Up to this size an all-reduce sends all data to all ranks: one hop instead of two.
constexpr size_t kSmallBytes = size_t{32} << 10;

Plan plan_all_gather(int rank, int size, const void* mine, void* all, size_t bytes);
Plan plan_broadcast(int rank, void* data, size_t bytes, int root);
Plan plan_barrier(int rank, int size);
Plan plan_reduce_scatter(int rank, int size, const void* full, void* shard, size_t count,
                         DType dtype);
Plan plan_all_reduce(int rank, int size, void* data, size_t count, DType dtype);
Plan plan_reduce_scatter_leaves(int rank, int size, const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice);
/// Requires that at least one rank holds a node.
Plan plan_all_reduce_partials(int rank, int size, const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank, float* total);

}  // namespace simplescale::collective
