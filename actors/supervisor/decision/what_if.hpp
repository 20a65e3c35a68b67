// What decide() would do, told without doing it.
#pragma once

#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// In a line: what would be decided if `kind` happened to a node or trainer now, and everybody
/// else behaved well. state: a copy.
std::string what_if(State state, const std::string& kind, const std::string& target);

}  // namespace simplescale::job
