// `train --nnodes=N --node-rank=R`: a run on several hosts without Slurm. The commands of all hosts
// exchange through the run's folder what srun would tell its tasks: the folder replaces srun's
// environment. Each command then acts as a task of srun.
#pragma once

#include "app/launch/run_start.hpp"
#include "runtime/run/host_place.hpp"

namespace simplescale {

/// From the command line; the names are torchrun's.
struct HostRank {
  int nnodes = 0;  // nodes and spares of the run; 0: the option was not given
  int node_rank = 0;
};

/// usage: the rank is not below nnodes.
Status check_rank(const HostRank& rank);

/// Takes this command's place among the hosts of the run, and trains as a task of srun does
/// (train_as_task), unless the run is already finished. Errors: those of HostPlace::take and
/// train_as_task.
Status train_on_hosts(RunStart start, const HostRank& rank, bool oversubscribe);

/// `doctor --nnodes=N --node-rank=R`: the hosts meet as for a run, in a folder of their own below
/// the run's control/. Returns this command's place; from now on slurm_task() returns its task.
/// Errors: those of HostPlace::take.
Result<HostPlace> meet_for_doctor(const RunFolder& run, const Config& config, const HostRank& rank);
/// Ends the check: no further command joins its hosts.
void end_doctor(const RunFolder& run, const HostPlace& place);

}  // namespace simplescale
