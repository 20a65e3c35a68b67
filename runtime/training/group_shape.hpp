// Which groups the nodes form that are left. A pure function of plain data, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace simplescale {

/// Groups of one size that the nodes at hand can form; with several groups on a node, sets of them.
struct GroupShape {
  int size = 1;             // nodes of a group
  size_t groups = 0;        // 1 or more
  bool configured = false;  // the size is parallel.group_nodes
  bool current = false;     // the size is that of the groups that train now
  size_t nodes() const { return groups * static_cast<size_t>(size); }
};

struct ShapeRules {
  std::vector<int> sizes;   // that groups may have
  int configured = 1;       // parallel.group_nodes
  size_t least_groups = 1;  // fewer do not train
  bool rate_first = false;  // cluster.prefer = "rate"
};

/// The groups that train now.
struct CurrentGroups {
  int size = 0;       // nodes of each; 0: none trains
  size_t groups = 0;  // how many of this size the nodes that are left form
};

/// Chooses among the shapes that so many nodes can form. Nothing: that of the configured size,
/// possible or not. RESHAPE-1: another one must train a tenth more nodes, since all state has to move.
/// Without rate_first it must also have two groups if the configured one has them. Of several, in this
/// order:
///   - two groups or more, since a lost node then costs no step; not with rate_first
///   - the current size, unless others train a tenth more nodes
///   - more nodes that train, then fewer nodes a group
std::optional<GroupShape> choose_shape(const ShapeRules& rules, size_t nodes,
                                       const CurrentGroups& current = {});

}  // namespace simplescale
