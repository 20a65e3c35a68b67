// What decide() would do about a fault, for the console's `plan`. A pure function, any thread.
#pragma once

#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// Says in a sentence what would follow if the fault `kind` hit the node or trainer `target` now.
/// It assumes that all other trainers answer as they should, and that a lost node comes back (after
/// `kill_agent` without its memory). Works on a copy of the state. avoid: settings with which a
/// lost node costs less.
std::string what_if(const State& state, const std::string& kind, const std::string& target,
                    const std::string& avoid = "");

}  // namespace simplescale::job
