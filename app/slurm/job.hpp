// What simplescale does in and with a Slurm job: `submit`, the end of the batch script, draining
// nodes. It runs Slurm's commands without a shell, and passes node names to them only if
// slurm::valid_node_name() accepts them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/launch/run_start.hpp"
#include "app/slurm/slurm.hpp"

namespace simplescale {

/// The nodes in control/status.json; none until the start `instance` has written it.
std::vector<slurm::LastKnownNode> last_known_nodes(const RunFolder& run,
                                                   const std::string& instance);

/// The batch script of a run.
struct BatchFile {
  std::string run, file, script;  // the run's folder; path and text of the script
  std::string config;             // text of control/submit.toml, the configuration of the script
};
/// Makes the batch script of a run; writes nothing.
Result<BatchFile> plan_batch_file(RunStart start);
/// Writes control/submit.sh and control/submit.toml.
Status write_batch_file(const BatchFile& batch);
/// Passes a script from memory to sbatch, so no other user can change it on the way. Returns the
/// job's number.
Result<std::string> submit_script(const std::string& script);
/// The command `submit`: prints the batch script. Unless dry_run, it also writes and submits it.
Status submit_command(const std::string& config, Overrides overrides, const std::string& run,
                      bool dry_run);
/// The last command of the batch script. code: srun's exit code. Requeues the job if the run has to
/// continue. Returns the job's exit code.
int requeue_command(const std::string& run, int code);

/// Called by every task once the run is over. If the batch script was lost with its host, one task
/// requeues or cancels the job instead. Otherwise a job that survives lost hosts (--no-kill) would
/// keep the remaining hosts until its time limit. That task blocks until Slurm has noticed the
/// loss.
void act_for_lost_script(const std::string& run, const slurm::Task& task, int code);

/// Handles a host that failed its diagnosis: records it, so that the next requeue excludes it, and
/// drains it in Slurm if this user may. Blocks while scontrol runs. Returns kind and reason of an
/// event; the kind is empty outside a job.
std::pair<std::string, std::string> drain_in_slurm(const std::string& run, const std::string& host,
                                                   const std::string& reason);

}  // namespace simplescale
