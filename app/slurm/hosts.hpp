// `train --nnodes=N --node-rank=R`: a run on several hosts without Slurm. The commands of all hosts
// tell each other in the run's folder what srun tells its tasks; from then on each is such a task.
#pragma once

#include "app/launch/run_start.hpp"
#include "runtime/run/host_place.hpp"

namespace simplescale {

/// Of the command line, as torchrun's options of these names.
struct HostRank {
  int nnodes = 0;  // nodes and spares of the run; 0: the option is not given
  int node_rank = 0;
};

/// usage: the rank is none of these hosts.
Status check_rank(const HostRank& rank);

/// Takes this command's place among the hosts of the run, and trains as a task of srun does
/// (train_as_task), unless the run is already finished. Errors: those of HostPlace::take and
/// train_as_task.
Status train_on_hosts(RunStart start, const HostRank& rank, bool oversubscribe);

/// `doctor --nnodes=N --node-rank=R`: the hosts meet as for a run, in a folder of their own below
/// the run's control/. Returns this command's place; slurm_task() gives its task from now on. Errors:
/// those of HostPlace::take.
Result<HostPlace> meet_for_doctor(const RunFolder& run, const Config& config, const HostRank& rank);
/// No further command joins the hosts of this check.
void end_doctor(const RunFolder& run, const HostPlace& place);

}  // namespace simplescale
