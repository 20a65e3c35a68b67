// The summation tree that makes results independent of the layout.
//
// A step's gradient is ONE binary tree over its micro-batches (leaves) in sample order.
// TreeNode{level, index} is the sum of leaves [index << level, (index + 1) << level). Whoever holds
// two siblings adds left + right, at once or later: the bits are the same. What no sibling is left
// for (the leaf count is no power of two) is added right to left at the end: for leaves 0..6 the
// total is (0..3) + ((4..5) + 6).
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

/// What is left of `nodes` (in order of first(), disjoint, contiguous) after every pair of siblings
/// has been merged.
std::vector<TreeNode> merged(std::span<const TreeNode> nodes);

/// The leaves [first, first + count) as the fewest aligned nodes, in order: merged() of the single
/// leaves.
std::vector<TreeNode> nodes_of_run(uint64_t first, uint64_t count);

/// One summand: a node and its `count` elements (count is common to a call).
struct TreeSource {
  TreeNode node;
  const void* data;
  DType dtype;
};

/// Adds element by element in tree order, in fp32. sinks[i] receives the i-th node of merged(nodes
/// of the sources); a sink may be the data of a source of its own or an earlier node (in place).
/// Sources: in order, contiguous. Thread: the caller's; reads each source once, in chunks that stay
/// in the first-level cache.
void tree_sum(std::span<const TreeSource> sources, std::span<float* const> sinks, size_t count);

/// As tree_sum, then collapses what is left right to left into the total.
void tree_total(std::span<const TreeSource> sources, void* total, DType dtype, size_t count);

/// The same collapse for scalars in double, for losses and norms: values[i] belongs to nodes[i].
double tree_total(std::span<const TreeNode> nodes, std::span<const double> values);

/// The growing sum of one run of leaves: the nodes so far, each with a buffer of `count` fp32
/// elements.
class PartialSum {
 public:
  /// buffers: digits_of_run(leaves) buffers of count elements each, owned by the caller.
  PartialSum(std::vector<float*> buffers, size_t count);
  void clear() { nodes_.clear(); }
  /// Adds leaves or nodes that follow what is there, in order.
  void add(std::span<const TreeSource> sources);
  /// add() in pieces, for sources that arrive bit by bit: adds elements [begin, begin + count), to
  /// which the sources' data point; nodes() changes with finish_add(), once all elements are in.
  void add_range(std::span<const TreeSource> sources, size_t begin, size_t count);
  void finish_add(std::span<const TreeNode> nodes);
  std::span<const TreeNode> nodes() const { return nodes_; }
  const float* data(size_t node) const { return buffers_[node]; }
  /// For whoever makes a node in place and then add()s it.
  float* buffer(size_t node) { return buffers_[node]; }
  size_t count() const { return count_; }
  size_t buffers() const { return buffers_.size(); }

 private:
  std::vector<float*> buffers_;
  size_t count_;
  std::vector<TreeNode> nodes_;
};

/// How many buffers a PartialSum needs for the run [first, first + count) when leaves are added
/// `leaves_per_add` at a time.
size_t digits_of_run(uint64_t first, uint64_t count, uint64_t leaves_per_add = 1);

/// The same for whichever of `groups` groups needs most, of a step's `rows` rows of `shards` leaves
/// (sharding.hpp). Exact up to 65,536 leaves, an upper bound beyond, so that no size takes long.
size_t digits_of_rows(uint64_t rows, uint64_t groups, uint64_t shards);

/// The most of digits_of_rows() for 1, 2, ... `groups` groups. Exact up to 2^25 leaves times
/// groups, an upper bound beyond.
size_t digits_of_any_groups(uint64_t rows, uint64_t groups, uint64_t shards);

}  // namespace simplescale
