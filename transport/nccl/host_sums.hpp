// Sums of leaves for a group that spans hosts: each host adds its own first, so a network card
// carries one fp32 partial sum of a host where it would carry a leaf of each rank. The leaves of a
// host are one node of the tree, so the bits stay the same. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/training/tree_sum.hpp"

namespace simplescale::nccl {

/// So that the parts of device memory that follow each other are aligned.
constexpr size_t padded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// One send to a peer, or one receive. NCCL pairs the n-th send to a rank with that rank's n-th
/// receive from here.
struct Message {
  int peer;
  const void* from;  ///< null: a receive
  void* to;          ///< null: a send
  size_t bytes;
};

/// The number of ranks on each host: if ranks of a host follow each other, and it is a power of two
/// and the same everywhere. 1: the ranks lie otherwise, or the hosts have one each. hosts: a number
/// for the host of each rank.
int ranks_per_host(std::span<const uint64_t> hosts);

/// True if each rank has a leaf, and the leaves of each host are one node of the tree.
bool leaves_fit(std::span<const TreeNode> leaf_of_rank, int size, int per_host);

/// What one rank does, in this order.
struct HostSums {
  std::vector<Message> near;                  ///< inside the host
  std::vector<std::vector<TreeSource>> sums;  ///< h: of this host's ranks, for a rank of host h
  std::vector<float*> results;                ///< h: where sums[h] goes
  std::vector<Message> far;                   ///< between hosts
  std::vector<TreeSource> summands;           ///< in leaf order: of each host, for this rank
};
/// Device memory that the plan uses.
size_t host_sums_bytes(int size, int per_host, size_t count, DType dtype);
/// Part p of `full` (count elements each) goes to rank p, as in Collective::reduce_scatter_leaves().
/// scratch: host_sums_bytes().
HostSums plan_host_sums(int rank, int size, int per_host, const void* full, size_t count,
                        DType dtype, std::span<const TreeNode> leaf_of_rank, std::byte* scratch);

}  // namespace simplescale::nccl
