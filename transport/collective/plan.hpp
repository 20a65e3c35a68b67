// What a collective does, as data: which bytes go to which rank, what is summed in which order,
// which bytes come from which rank. Each operation is a pure function that returns its plan;
// operation.hpp executes plans over any kind of link, transport/nccl over NCCL.
//
// Two levels, where ranks share hosts and the bytes are worth a second hop:
//   copies  Each rank sends its part once to each other host, to its partner there, which passes it
//           on to its neighbours through shared memory.
//   sums    Neighbours' summands that make one node of the tree, and as summands have more bytes
//           than the node in fp32, are added on their host by the partner of the rank that needs
//           them. Only the node crosses. Two summands in bf16 are as many bytes, so they cross.
// The sums have the same bits, because a node is the same wherever it is added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/training/collective.hpp"
#include "transport/collective/hosts.hpp"

namespace simplescale::collective {

constexpr int kOthers = -1;      ///< all ranks but this one
constexpr int kNeighbours = -2;  ///< the other ranks on this host
constexpr int kAway = -3;        ///< all ranks on other hosts

/// A stream is named by its sender and receiver, its operation's number, and its phase.
constexpr int kPhaseBits = 24;
constexpr uint64_t stream_key(uint64_t operation, uint32_t phase) {
  return operation << kPhaseBits | phase;
}

/// When the data of a stream is there to be sent, from the first byte on.
enum class After : uint8_t {
  start,
  sum,       ///< of the plan: the data is its result
  copy,      ///< number `index` of the plan: the data is what it has received
  host_sum,  ///< number `index` of the plan: the data is its result, which has no other place
};

/// A stream to one rank, or to several.
struct Outgoing {
  uint32_t phase;
  int to;                 ///< a rank, kOthers, kNeighbours or kAway
  const std::byte* data;  ///< null: of a host_sum
  size_t bytes;
  After after = After::start;
  size_t index = 0;
};

/// A stream from a rank, copied to memory.
struct Incoming {
  uint32_t phase;
  int from;
  std::byte* to;
  size_t bytes;
};

/// A summand: this rank's `data`, or if that is null the stream `phase` of rank `from`.
struct Summand {
  TreeNode node;
  uint32_t phase;
  int from;
  const std::byte* data;
  DType dtype;
};

/// The sum goes into `total`, or is added to `partial`. A host's sum has neither.
struct Sum {
  std::vector<Summand> summands;  ///< in leaf order
  size_t count = 0;               ///< elements of each summand
  DType dtype = DType::f32;       ///< of total
  std::byte* total = nullptr;
  PartialSum* partial = nullptr;
};

struct Plan {
  const char* name = "";
  std::vector<Outgoing> sends;
  std::vector<Sum> host_sums;  ///< of this host's ranks, each one node, for ranks of other hosts
  Sum sum;
  std::vector<Incoming> copies;
  /// This rank's own part, copied locally.
  const std::byte* local_from = nullptr;
  std::byte* local_to = nullptr;
  size_t local_bytes = 0;
  std::vector<std::byte> scratch;  ///< for operations without the caller's buffers (barrier)
};

/// Up to this size an all-reduce sends all data to all ranks: one hop instead of two. And if two
/// levels save less than this of what a host sends, ranks exchange without partners.
constexpr size_t kSmallBytes = size_t{32} << 10;

// A number of ranks as `hosts` stands for ranks that use one level.

Plan plan_all_gather(int rank, const Hosts& hosts, const void* mine, void* all, size_t bytes);
Plan plan_broadcast(int rank, const Hosts& hosts, void* data, size_t bytes, int root);
Plan plan_barrier(int rank, int size);
Plan plan_exchange(std::span<const Parcel> sends, std::span<const Parcel> receives);
Plan plan_reduce_scatter(int rank, const Hosts& hosts, const void* full, void* shard, size_t count,
                         DType dtype);
Plan plan_all_reduce(int rank, const Hosts& hosts, void* data, size_t count, DType dtype);
Plan plan_reduce_scatter_leaves(int rank, const Hosts& hosts, const void* full, size_t count,
                                DType dtype, std::span<const TreeNode> leaf_of_rank,
                                PartialSum& slice);
/// Requires that at least one rank holds a node.
Plan plan_all_reduce_partials(int rank, const Hosts& hosts, const PartialSum& mine,
                              std::span<const std::vector<TreeNode>> nodes_of_rank, float* total);

}  // namespace simplescale::collective
