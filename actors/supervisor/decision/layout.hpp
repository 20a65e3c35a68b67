// Which trainer holds which shard in a generation, and which copies of the state have to move.
// Pure functions of plain data, any thread.
//
// A failure domain is the unit that a layout gains or loses: the nodes that hold one group or, with
// no_shard, one node with as many groups as trainers. A layout is a list of failure domains of one
// size; a node in none of them is a spare. After a loss the nodes may form domains of another size
// (next_layout() in placement.hpp); then a group has another number of shards, which is the cut of
// the state. The samples of a group follow from its number, from the number of groups and from that
// of shards (Shares in sharding.hpp), so a step has the same samples and the same sums with any
// layout. While the run trains, nodes join it and leave it (NodeUp, DrainRequested); a name belongs
// to the run from a node's first hello until the node is removed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/names.hpp"

namespace simplescale::job {

struct Layout {
  std::vector<std::vector<std::string>> domains;  // names of nodes, in shard order
  bool operator==(const Layout&) const = default;
  bool contains(const std::string& node) const;
};

struct LayoutRules {
  int trainers_per_node = 1;
  int shards = 1;                      // trainers of a group of the configured size
  int domain_nodes = 1;                // nodes of a failure domain of the configured size
  int domains = 1;                     // wanted number of failure domains of the configured size
  int min_domains = 1;                 // training waits while there are fewer, of whatever size
  int spares = 0;                      // nodes that stay idle while more train than were wanted
  int max_nodes = 0;                   // names n0 to n<max_nodes - 1>: nodes that may join the run
  std::vector<int> domain_sizes = {};  // other numbers of nodes that a domain may have, ascending;
                                       // only if a domain is one group
  bool rate_first = false;  // train with as many nodes as possible, even without a second domain
  /// How many failure domains of that size so many nodes are to form: those that have joined train,
  /// too.
  int domains_of(size_t nodes, int size) const {
    const int train = std::min(static_cast<int>(nodes), max_nodes) - spares;
    return std::max(domains * domain_nodes, train) / size;
  }
  int domains_of(size_t nodes) const { return domains_of(nodes, domain_nodes); }
  int most_domains() const { return domains_of(static_cast<size_t>(max_nodes)); }
  int groups_per_domain() const { return domain_nodes * trainers_per_node / shards; }
  /// Trainers of a group in domains of so many nodes.
  int shards_of(int nodes) const { return shards / domain_nodes * nodes; }
  /// Nodes of each failure domain of the layout; of the configured size if it has none.
  int size_of(const Layout& layout) const {
    return layout.domains.empty() ? domain_nodes : static_cast<int>(layout.domains.front().size());
  }
  /// The cut of the state in that layout.
  uint32_t cut_of(const Layout& layout) const {
    return static_cast<uint32_t>(shards_of(size_of(layout)));
  }
  bool allows(int size) const {
    return size == domain_nodes || std::ranges::find(domain_sizes, size) != domain_sizes.end();
  }
  bool operator==(const LayoutRules&) const = default;
};

/// The group and the shard that a trainer has in a layout.
struct Place {
  std::string trainer;
  uint32_t group = 0, shard = 0;
};
/// Every trainer of the layout, by group, then shard.
std::vector<Place> places(const LayoutRules& rules, const Layout& layout);

/// Makes a layout with as many failure domains of `size` nodes as the usable nodes allow, with few
/// changes to `current`. Complete domains stay, and spares fill gaps. The domains with the most gaps
/// are dissolved to fill the gaps of others. The remaining nodes form new domains, domains_of() all
/// nodes at most. If `current` has another size, all domains are new: its nodes come first, in their
/// order. usable: names of nodes, the preferred ones first.
Layout assign(const LayoutRules& rules, int size, const Layout& current,
              const std::vector<std::string>& usable);

/// Chooses among layouts with domains of these sizes, as assign() makes them, by choose_shape()
/// (runtime/training/group_shape.hpp). One with fewer than least_domains counts only if it has the
/// configured size and there is no other.
Layout choose_layout(const LayoutRules& rules, const std::vector<int>& sizes, size_t least_domains,
                     const Layout& current, const std::vector<std::string>& usable);

// --- State ---

/// A copy of a shard's state that `source` can send. peer = false: `source` is a trainer that sends
/// from its own memory. peer = true: `source` is a trainer or an agent ("n1") that sends from other
/// memory of its node.
struct AvailableCopy {
  std::string source;
  uint32_t shard = 0;
  uint64_t step = 0;
  bool peer = false;
  uint32_t shards = 1;  // of the cut to which it belongs
};
/// A step of which every shard of a cut has a copy.
struct CompleteStep {
  uint64_t step = 0;
  uint32_t shards = 1;
  bool operator==(const CompleteStep&) const = default;
};
/// The newest one. If there are copies of several whole cuts, takes `preferred` if it is among them,
/// else the cut with the fewest shards.
std::optional<CompleteStep> newest_complete(const std::vector<AvailableCopy>& copies,
                                            uint32_t preferred = 0);

/// An order to send a copy to trainers. source, peer: as in AvailableCopy. Trainers whose place has
/// another cut take the elements out of the copy that belong to their own shard; then the source may
/// be a target, too.
struct Move {
  uint32_t shard = 0;
  uint64_t step = 0;
  std::string source;
  bool peer = false;
  std::vector<std::string> targets;
  uint32_t shards = 1;  // of the cut to which the copy belongs
  bool operator==(const Move&) const = default;
  /// True if nothing is sent: a trainer takes elements out of its own memory.
  bool local() const { return targets.size() == 1 && targets.front() == source; }
};
/// Returns the moves that give every place its shard, one of `place_shards`, of that step, from
/// copies of that cut. Prefers as the source a trainer that keeps the shard or, if the place has
/// another cut, one that has a place; then any trainer's memory, then other memory of a node. Leaves
/// out a shard without a copy: the caller checks before that every shard has one (newest_complete).
/// place_shards = complete.shards: none to trainers that hold their shard. Otherwise every shard of
/// the cut goes to all places. The places that hold it take their elements out of their own memory.
std::vector<Move> moves_for(const std::vector<Place>& places, uint32_t place_shards,
                            const std::vector<AvailableCopy>& copies, const CompleteStep& complete);

}  // namespace simplescale::job
