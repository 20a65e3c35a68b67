// A diagnosis of the machine beside the node actor: takes seconds, blocks its own thread, answers
// the node with NodeChecked, and ends.
#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <string>

namespace simplescale {

/// folder: where the run writes.
void spawn_check(caf::actor_system& system, const caf::actor& node, const std::string& name,
                 const std::string& folder);

}  // namespace simplescale
