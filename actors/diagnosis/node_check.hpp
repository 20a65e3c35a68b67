// A diagnosis of one node: its machine (arithmetic, memory, disk, clock) and its links to other
// nodes. It takes seconds and runs in an actor of its own, which may block, sends NodeChecked to
// the node actor, and ends.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <functional>
#include <string>
#include <vector>

#include "actors/find_node.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "transport/caf/message_types.hpp"

namespace simplescale {

/// The peers to which `node` measures its links: the next two in `order`, cyclically, that are up.
/// All nodes may measure at once, since no peer is measured to by more than two of them.
std::vector<std::string> link_peers(const std::vector<std::string>& order, const std::string& node,
                                    const std::function<bool(const std::string&)>& is_up);

/// Measures the network to other nodes with Pings through the agents' transport; blocks.
///
///   link_rtt  us of the fastest of the small round trips
///   link      GB/s, both directions added, of the fastest of the large round trips
///
/// Each is the best over all peers: if this node's own link is bad, it is bad to every peer.
/// Returns nothing if `links` is empty; results that are not ok if no peer answers.
std::vector<CheckResult> check_links(caf::actor_system& system, const FindNode& find,
                                     const std::vector<LinkEnd>& links);

/// Spawns the diagnosis. node: gets NodeChecked. name: "n1". folder: on the file system whose speed
/// is checked.
void spawn_node_check(caf::actor_system& system, const caf::actor& node, const std::string& name,
                      const std::string& folder, FindNode find, std::vector<LinkEnd> links);

}  // namespace simplescale
