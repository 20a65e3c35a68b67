// Adds to a trainer's report that it has left a generation what the supervisor knows: the trainer
// at fault, and the samples of a value that is not finite. The supervisor's thread.
#pragma once

#include "actors/supervisor/supervisor.hpp"

namespace simplescale::supervisor {

TrainerIdle idle_event(const JobSupervisorState& s, const TrainerIdle& idle, int64_t now_ms);

}  // namespace simplescale::supervisor
