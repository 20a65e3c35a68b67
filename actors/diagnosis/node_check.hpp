// A diagnosis of the machine beside the node actor: takes seconds, blocks its own thread, answers
// the node with NodeChecked, and ends.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <functional>
#include <string>
#include <vector>

#include "actors/find_node.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// The peers to which `node` measures its links: the next ones in `order` that are there, each node
/// its own, so that all may measure at the same time.
std::vector<std::string> link_peers(const std::vector<std::string>& order, const std::string& node,
                                    const std::function<bool(const std::string&)>& is_there);

/// Round trip and bandwidth of the network to other nodes, through the transport that the agents
/// use: small Pings, then large ones. value of "link_rtt" is the best peer's best, in us, and of
/// "link" the best peer's best, in GB/s both ways: a bad link of this node is bad to all of them.
/// Empty without links; not ok if no peer answers. Blocking.
std::vector<CheckResult> check_links(caf::actor_system& system, const FindNode& find,
                                     const std::vector<LinkEnd>& links);

/// folder: where the run writes.
void spawn_check(caf::actor_system& system, const caf::actor& node, const std::string& name,
                 const std::string& folder, FindNode find, std::vector<LinkEnd> links);

}  // namespace simplescale
