// What decide() would do about a fault, for the console's `plan`. A pure function, any thread.
#pragma once

#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// The decisions, in one line, if the fault `kind` hit the node or trainer `target` now and all
/// other trainers answered as they should. Works on a copy of the state.
std::string what_if(State state, const std::string& kind, const std::string& target);

}  // namespace simplescale::job
