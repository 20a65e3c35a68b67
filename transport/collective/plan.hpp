// What a collective does, as data: which bytes go to whom, what is summed in which order, which
// bytes come from whom. Every operation is written once, here, as a pure function; operation.hpp
// carries plans out over any kind of link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/training/tree_sum.hpp"

namespace simplescale::collective {

/// A stream to the ranks of a bit mask.
struct Outgoing {
  uint16_t phase;
  uint64_t to;
  const std::byte* data;
  size_t bytes;
  bool after_sum;  ///< its bytes are the sum's result and go out as they become ready
};

/// A stream from a rank, to be copied.
struct Incoming {
  uint16_t phase;
  int from;
  std::byte* to;
  size_t bytes;
};

/// A summand: our own where data is set, else the stream `phase` of rank `from`.
struct Summand {
  TreeNode node;
  uint16_t phase;
  int from;
  const std::byte* data;
};

/// summands, in leaf order, of `count` elements each; into `total`, or added to `partial`.
struct Sum {
  std::vector<Summand> summands;
  size_t count = 0;
  DType dtype = DType::f32;  ///< of the summands and of total
  std::byte* total = nullptr;
  PartialSum* partial = nullptr;
};

struct Plan {
  const char* name = "";
  std::vector<Outgoing> sends;
  Sum sum;
  std::vector<Incoming> copies;
  /// Our own part, copied locally.
  const std::byte* local_from = nullptr;
  std::byte* local_to = nullptr;
  size_t local_bytes = 0;
  std::vector<std::byte> scratch;  ///< memory for operations without any of the caller's
};

/// Below this size an all-reduce sends everything to everybody: one hop instead of two.
constexpr size_t kSmallBytes = size_t{32} << 10;

Plan plan_all_gather(int rank, int size, const void* mine, void* all, size_t bytes);
Plan plan_broadcast(int rank, int size, void* data, size_t bytes, int root);
Plan plan_barrier(int rank, int size);
Plan plan_reduce_scatter(int rank, int size, const void* full, void* shard, size_t count,
                         DType dtype);
Plan plan_all_reduce(int rank, int size, void* data, size_t count, DType dtype);
Plan plan_reduce_scatter_leaves(int rank, int size, const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaf_of_rank, PartialSum& slice);
Plan plan_all_reduce_partials(int rank, int size, const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank, float* total);

}  // namespace simplescale::collective
