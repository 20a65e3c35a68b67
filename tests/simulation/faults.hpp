// What goes wrong in a history, and when: drawn from its seed.
#pragma once

namespace simplescale::simulation {

class Cluster;

/// Puts faults into the cluster's future and sets its quiet_at, after which nothing fails any more.
void schedule_faults(Cluster& cluster);

}  // namespace simplescale::simulation
