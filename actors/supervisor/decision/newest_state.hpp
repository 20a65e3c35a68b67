// Which state the next generation begins with, and whether a newer one may still be reported. Pure
// functions of the state, any thread.
#pragma once

#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/rollback.hpp"

namespace simplescale::job {

/// The state that a generation begins with, and the copies of it.
struct Beginning {
  Source source = Source::initialize;
  uint64_t step = 0;
  uint32_t shards = 1;                // of the cut of the copies in memory that it takes
  std::vector<AvailableCopy> copies;  // also of other steps and cuts
  uint64_t branch = newest_branch;    // if not the current one: regains steps
};

/// Returns the newest state of which every shard of a cut has a copy. JOB-1: includes states of
/// abandoned branches whose rollback is tentative, if they are newer. preferred: the cut to take if
/// there are copies of several whole ones.
Beginning newest_state(const State& s, uint32_t preferred = 0);
/// The newest committed step or, if idle trainers know better than a new supervisor, the newest that all
/// of them made that have made one in the last generation.
uint64_t newest_made(const State& s);
/// True if a newer step than `beginning` may have been committed, and some connected agent has
/// not yet reported what its node's memory holds after the end of the last generation.
bool answers_missing(const State& s, const Beginning& beginning);
/// True if the memory of connected nodes may hold every shard of a newer step than `beginning`.
/// It holds at least the steps that were reported last. A trainer that was then in the newest
/// generation may also hold each newer step that other trainers hold, as its shard there. Counts also nodes that
/// cannot send now because none of their trainers is up.
bool memory_may_be_newer(const State& s, const Beginning& beginning);

}  // namespace simplescale::job
