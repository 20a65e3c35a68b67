// Who trains what in a generation, and where its state comes from. Pure functions of plain data.
//
// A cell is what stands or falls together: group_nodes nodes that hold one group, or, with
// no_shard, one node with as many groups as trainers. A layout is a list of cells; nodes that are
// in none are spares. The number of shards never changes in a run, the number of cells does; which
// samples a group trains follows from its number and theirs (rows_of_group), so that the samples of
// a step and their sums do not change.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/names.hpp"

namespace simplescale::job {

using simplescale::node_of;
using simplescale::trainer_name;

struct LayoutRules {
  int trainers_per_node = 1;
  int shards = 1;      // trainers of a group
  int cell_nodes = 1;  // nodes of a cell
  int cells = 1;       // wanted
  int min_cells = 1;   // with fewer, training waits
  int groups_per_cell() const { return cell_nodes * trainers_per_node / shards; }
  bool operator==(const LayoutRules&) const = default;
};

struct Layout {
  std::vector<std::vector<std::string>> cells;  // nodes by name, in shard order
  bool operator==(const Layout&) const = default;
  bool contains(const std::string& node) const;
};

struct Place {
  std::string trainer;
  uint32_t group = 0, shard = 0;
};
/// Every trainer of the layout, by group, then shard.
std::vector<Place> places(const LayoutRules& rules, const Layout& layout);

/// The best layout that the usable nodes allow, as near to `current` as can be: whole cells stay;
/// a gap is filled by a spare; cells with the most gaps are given up to fill others; new cells are
/// made of what is left. usable: in order of preference.
Layout assign(const LayoutRules& rules, const Layout& current,
              const std::vector<std::string>& usable);

// --- State ---

/// A copy that can be had: in the memory of a trainer that is up, or (peer) of its node.
struct AvailableCopy {
  std::string trainer;
  uint32_t shard = 0;
  uint64_t step = 0;
  bool peer = false;
};
/// The newest step of which every shard 0..shards-1 has a copy.
std::optional<uint64_t> newest_complete(const std::vector<AvailableCopy>& copies, int shards);

/// One copy to several trainers.
struct Move {
  uint32_t shard = 0;
  uint64_t step = 0;
  std::string source;
  bool peer = false;
  std::vector<std::string> targets;
  bool operator==(const Move&) const = default;
};
/// What has to move so that every place has its shard at `step`: nothing for those that hold it. A
/// source that keeps its shard is preferred, then any trainer's memory, then a peer store.
std::vector<Move> moves_for(const std::vector<Place>& places,
                            const std::vector<AvailableCopy>& copies, uint64_t step);

}  // namespace simplescale::job
