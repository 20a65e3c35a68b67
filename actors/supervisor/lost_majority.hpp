// Lost majority: whether the votes of nodes that cannot reach a supervisor show that it is cut off
// (LEAD-1). A function of its arguments.
#pragma once

#include <set>
#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// True if no trainer trains, and more nodes vote against the supervisor than report to it. JOB-1:
/// a node that has missed a committed step has no vote, because its side of the network would make
/// that step again.
bool lost_majority(const State& job, const std::set<std::string>& votes,
                   const std::set<std::string>& reporting);

}  // namespace simplescale::job
