// A supervisor that continues where its predecessor stopped. Run by the supervisor actor when it
// starts.
#pragma once

#include "actors/supervisor/carry_out.hpp"

namespace simplescale::supervisor {

/// Adopts the predecessor's state: the job, its steps, its incident, planned faults and traces.
/// Nodes and trainers report again by themselves.
void take_over(Self* self, SupervisorState from);

}  // namespace simplescale::supervisor
