// Which trainer holds which shard in a generation, and which copies of the state have to move.
// Pure functions of plain data, any thread.
//
// A failure domain is the unit that a layout gains or loses: the group_nodes nodes that hold
// one group or, with no_shard, one node with as many groups as trainers. A layout is a list of
// failure domains; a node in none of them is a spare. The number of shards is fixed for a run; the
// number of failure domains changes. The samples of a group follow from its number and from the
// number of groups (Shares in sharding.hpp), so a step has the same samples and the same sums with
// any number of failure domains. While the run trains, nodes join it and leave it (NodeUp,
// DrainRequested); a name belongs to the run from a node's first hello until the node is removed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/names.hpp"

namespace simplescale::job {

struct LayoutRules {
  int trainers_per_node = 1;
  int shards = 1;        // trainers of a group
  int domain_nodes = 1;  // nodes of a failure domain
  int domains = 1;       // wanted number of failure domains
  int min_domains = 1;   // training waits while there are fewer
  int spares = 0;        // nodes that stay idle while more train than were wanted
  int max_nodes = 0;     // names n0 to n<max_nodes - 1>: nodes that may join the run
  /// How many failure domains so many nodes are to form: those that have joined train, too.
  int domains_of(size_t nodes) const {
    const int train = std::min(static_cast<int>(nodes), max_nodes) - spares;
    return std::max(domains, train / domain_nodes);
  }
  int most_domains() const { return domains_of(static_cast<size_t>(max_nodes)); }
  int groups_per_domain() const { return domain_nodes * trainers_per_node / shards; }
  bool operator==(const LayoutRules&) const = default;
};

struct Layout {
  std::vector<std::vector<std::string>> domains;  // names of nodes, in shard order
  bool operator==(const Layout&) const = default;
  bool contains(const std::string& node) const;
};

/// The group and the shard that a trainer has in a layout.
struct Place {
  std::string trainer;
  uint32_t group = 0, shard = 0;
};
/// Every trainer of the layout, by group, then shard.
std::vector<Place> places(const LayoutRules& rules, const Layout& layout);

/// Makes a layout with as many failure domains as the usable nodes allow, with few changes to
/// `current`. Complete domains stay, and spares fill gaps. The domains with the most gaps are
/// dissolved to fill the gaps of others. The remaining nodes form new domains, domains_of() all
/// nodes at most. usable: names of nodes, the preferred ones first.
Layout assign(const LayoutRules& rules, const Layout& current,
              const std::vector<std::string>& usable);

// --- State ---

/// A copy of a shard's state that `source` can send. peer = false: `source` is a trainer that sends
/// from its own memory. peer = true: `source` is a trainer or an agent ("n1") that sends from other
/// memory of its node.
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
/// Returns the moves that give every place its shard at `step`; none to trainers that hold it.
/// Prefers as the source a trainer that keeps the shard, then any trainer's memory, then other
/// memory of a node. Leaves out a shard without a copy: the caller checks before that every shard
/// has one (newest_complete).
std::vector<Move> moves_for(const std::vector<Place>& places,
                            const std::vector<AvailableCopy>& copies, uint64_t step);

}  // namespace simplescale::job
