// The summation tree, which makes the bits of sums independent of the layout.
//
// A step's gradient is the sum over its micro-batches (leaves), in sample order, along one binary
// tree. TreeNode{level, index} is the sum of leaves [index << level, (index + 1) << level). A rank
// that has two siblings adds left + right, now or later: the bits are the same. If the number of
// leaves is not a power of two, the nodes without a sibling are added right to left at the end: for
// leaves 0..6 the total is (0..3) + ((4..5) + 6). Pure functions, any thread.
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

/// Merges all pairs of siblings in `nodes`, which are in order of first() and disjoint. Returns the
/// remaining nodes.
std::vector<TreeNode> merged(std::span<const TreeNode> nodes);

/// The fewest nodes that cover the leaves [first, first + count), in order: merged() of the leaves.
std::vector<TreeNode> nodes_of_run(uint64_t first, uint64_t count);

/// A summand: a node and its elements. All summands of a call have the same number of elements.
struct TreeSource {
  TreeNode node;
  const void* data;
  DType dtype;
};

/// Adds `count` elements of each source in tree order, in fp32. sinks[i] receives node i of
/// merged(nodes of the sources). It may be the data of a source of this node or of an earlier node
/// (in place). sources: in order, disjoint. Reads each source once, in chunks that fit into the L1
/// cache.
void tree_sum(std::span<const TreeSource> sources, std::span<float* const> sinks, size_t count);

/// As tree_sum(), then adds the remaining nodes right to left into `total`, rounded to `dtype`
/// once. sources: without gaps, so that no leaf can be missing.
void tree_total(std::span<const TreeSource> sources, void* total, DType dtype, size_t count);

/// The same total for scalars in double (losses and norms); values[i] belongs to nodes[i].
double tree_total(std::span<const TreeNode> nodes, std::span<const double> values);

/// The growing sum of a group's leaves, which may have gaps. It works like a binary counter whose
/// digits are the nodes so far; each node has a buffer of `count` fp32 elements. One thread.
class PartialSum {
 public:
  /// buffers: of `count` elements each, owned by the caller; as many as there are nodes at a time
  /// (digits_of() in sharding.hpp).
  PartialSum(std::vector<float*> buffers, size_t count);
  void clear() { nodes_.clear(); }
  /// Adds leaves or nodes, in order; they must come after those added so far.
  void add(std::span<const TreeSource> sources);
  /// As add(), for sources that arrive in pieces: adds elements [begin, begin + count) of sources
  /// whose data points to element `begin`. After all elements, call added(), which updates nodes().
  void add_range(std::span<const TreeSource> sources, size_t begin, size_t count);
  void added(std::span<const TreeNode> nodes);
  std::span<const TreeNode> nodes() const { return nodes_; }
  const float* data(size_t node) const { return buffers_[node]; }
  /// The buffer of a node, for a caller that computes the node in it and then adds it.
  float* buffer(size_t node) { return buffers_[node]; }
  size_t count() const { return count_; }
  size_t buffers() const { return buffers_.size(); }

 private:
  std::vector<float*> buffers_;
  size_t count_;
  std::vector<TreeNode> nodes_;
};

}  // namespace simplescale
