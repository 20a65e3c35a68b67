// The faults of a history and their times, drawn from its seed.
#pragma once

namespace simplescale::simulation {

class Cluster;

/// Schedules the faults and sets quiet_at, the time after which nothing fails any more.
void schedule_faults(Cluster& cluster);

}  // namespace simplescale::simulation
