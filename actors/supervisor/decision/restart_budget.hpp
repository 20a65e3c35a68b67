// The restart budget of a node: more than State::max_restarts failures within State::within_ms drain
// it. Functions of the state; any thread.
#pragma once

#include <string>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// Counts a failure for the node's budget, once for each cause: failures of other trainers of the
/// node by the same cause do not count again. subject: the node or trainer that failed.
void record_failure(State& s, int64_t now_ms, const std::string& subject);
/// Why the node, which is up, has to be drained; "": it need not.
std::string budget_exceeded(const State& s, const std::string& name);
/// If a node has recovered, its next failure counts as a new cause. Call after each event.
void end_causes(State& s);
/// Forgets the failures of nodes that have trained State::budget_steps steps since. Call when a step
/// is committed.
void forget_old_failures(State& s);

}  // namespace simplescale::job
