// The summation tree that makes sums independent of the layout, bit by bit.
//
// A step's gradient is the sum over its micro-batches (leaves), in sample order, along one binary
// tree. TreeNode{level, index} is the sum of leaves [index << level, (index + 1) << level). A rank
// that holds two siblings adds left + right, at once or later: the bits are the same. If the number
// of leaves is not a power of two, the nodes without a sibling are added right to left at the end:
// for leaves 0..6 the total is (0..3) + ((4..5) + 6). Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.hpp"

namespace simplescale {

struct TreeNode {
  uint32_t level = 0;
  uint64_t index = 0;
  bool operator==(const TreeNode&) const = default;
  uint64_t first() const { return index << level; }
};

/// The nodes that remain of `nodes` (in order of first(), disjoint, contiguous) after all pairs of
/// siblings have been merged.
std::vector<TreeNode> merged(std::span<const TreeNode> nodes);

/// The leaves [first, first + count) as the fewest possible nodes, in order: merged() of the
/// leaves.
std::vector<TreeNode> nodes_of_run(uint64_t first, uint64_t count);

/// A summand: a node and its elements. All summands of a call have the same number of elements.
struct TreeSource {
  TreeNode node;
  const void* data;
  DType dtype;
};

/// Adds `count` elements of each source in tree order, in fp32. sinks[i] receives node i of
/// merged(nodes of the sources), and may be the data of a source of this node or of an earlier one
/// (in place). sources: in order, contiguous. Reads each source once, in chunks that fit into the
/// L1 cache.
void tree_sum(std::span<const TreeSource> sources, std::span<float* const> sinks, size_t count);

/// tree_sum(), then adds the remaining nodes right to left into `total`, rounded to `dtype` once.
void tree_total(std::span<const TreeSource> sources, void* total, DType dtype, size_t count);

/// The same total for scalars in double (losses and norms); values[i] belongs to nodes[i].
double tree_total(std::span<const TreeNode> nodes, std::span<const double> values);

/// The growing sum of a run of consecutive leaves. Like a binary counter, whose digits are the
/// nodes so far; each has a buffer of `count` fp32 elements. One thread.
class PartialSum {
 public:
  /// buffers: digits_of_run() of them, with `count` elements each, owned by the caller.
  PartialSum(std::vector<float*> buffers, size_t count);
  void clear() { nodes_.clear(); }
  /// Adds leaves or nodes that follow those added so far, in order.
  void add(std::span<const TreeSource> sources);
  /// add() in pieces, for sources that arrive in pieces: adds elements [begin, begin + count),
  /// where the sources' data points to element `begin`. After all elements, added() updates
  /// nodes().
  void add_range(std::span<const TreeSource> sources, size_t begin, size_t count);
  void added(std::span<const TreeNode> nodes);
  std::span<const TreeNode> nodes() const { return nodes_; }
  const float* data(size_t node) const { return buffers_[node]; }
  /// For a caller that computes a node in its buffer and then adds it.
  float* buffer(size_t node) { return buffers_[node]; }
  size_t count() const { return count_; }
  size_t buffers() const { return buffers_.size(); }

 private:
  std::vector<float*> buffers_;
  size_t count_;
  std::vector<TreeNode> nodes_;
};

/// Number of buffers that a PartialSum needs for leaves [first, first + count) if `leaves_per_add`
/// are added per call: the most nodes ("digits") that it ever holds.
size_t digits_of_run(uint64_t first, uint64_t count, uint64_t leaves_per_add = 1);

/// The largest digits_of_run() of `groups` groups that share a step of `rows` rows of `shards`
/// leaves (sharding.hpp). Exact up to 65,536 leaves; an upper bound above, to be fast for every
/// size.
size_t digits_of_rows(uint64_t rows, uint64_t groups, uint64_t shards);

/// The largest digits_of_rows() for 1 to `groups` groups. Exact if leaves times groups are at most
/// 2^25; an upper bound above.
size_t digits_of_any_groups(uint64_t rows, uint64_t groups, uint64_t shards);

}  // namespace simplescale
