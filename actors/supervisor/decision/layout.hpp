// Which trainer holds which shard in a generation, and which copies of the state have to move.
// Pure functions of plain data, any thread.
//
// A cell is the unit that a layout gains or loses: the group_nodes nodes that hold one group or,
// with no_shard, one node with as many groups as trainers. A layout is a list of cells; a node that
// is in none of them is a spare. The number of shards is fixed for a run; the number of cells
// changes. The samples of a group follow from its number and from the number of groups
// (rows_of_group), so a step has the same samples and the same sums with any number of cells.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/names.hpp"

namespace simplescale::job {

struct LayoutRules {
  int trainers_per_node = 1;
  int shards = 1;      // trainers of a group
  int cell_nodes = 1;  // nodes of a cell
  int cells = 1;       // wanted number
  int min_cells = 1;   // training waits while there are fewer
  int groups_per_cell() const { return cell_nodes * trainers_per_node / shards; }
  bool operator==(const LayoutRules&) const = default;
};

struct Layout {
  std::vector<std::vector<std::string>> cells;  // names of nodes, in shard order
  bool operator==(const Layout&) const = default;
  bool contains(const std::string& node) const;
};

/// The part of a trainer in a layout.
struct Place {
  std::string trainer;
  uint32_t group = 0, shard = 0;
};
/// Every trainer of the layout, by group, then shard.
std::vector<Place> places(const LayoutRules& rules, const Layout& layout);

/// A layout of as many cells as the usable nodes allow, with few changes to `current`: complete
/// cells stay, spares fill gaps, the cells with the most gaps are dissolved to fill the gaps of
/// other cells, and new cells are made of the remaining nodes.
/// usable: names of nodes, the preferred ones first.
Layout assign(const LayoutRules& rules, const Layout& current,
              const std::vector<std::string>& usable);

// --- State ---

/// A copy of a shard's state that `source` can send: a trainer from its own memory or, if `peer`, a
/// trainer or the agent ("n1") of a node from other memory of the node.
struct AvailableCopy {
  std::string source;
  uint32_t shard = 0;
  uint64_t step = 0;
  bool peer = false;
};
/// The newest step of which every shard 0..shards-1 has a copy.
std::optional<uint64_t> newest_complete(const std::vector<AvailableCopy>& copies, int shards);

/// An order to send a copy to trainers. source, peer: as in AvailableCopy.
struct Move {
  uint32_t shard = 0;
  uint64_t step = 0;
  std::string source;
  bool peer = false;
  std::vector<std::string> targets;
  bool operator==(const Move&) const = default;
};
/// The moves that give every place its shard at `step`; none to trainers that hold it. Prefers as
/// the source a trainer that keeps the shard, then any trainer's memory, then other memory of a
/// node. A shard without a copy is left out: the caller makes sure that there is one
/// (newest_complete).
std::vector<Move> moves_for(const std::vector<Place>& places,
                            const std::vector<AvailableCopy>& copies, uint64_t step);

}  // namespace simplescale::job
