// What of the program knows Slurm: a task of srun, `submit`, the end of a batch script, and nodes
// that are to be drained there. Slurm's commands are run without a shell, and only with names that
// slurm::valid_node_name() admits.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "app/launch/run_start.hpp"
#include "app/slurm/slurm.hpp"

namespace simplescale {

/// This process's, from its environment.
std::optional<slurm::Task> slurm_task();

/// One node agent of a job. Returns only if it could not begin; else the process ends here.
Status train_in_slurm(RunStart start, const slurm::Task& task, bool oversubscribe);

/// control/submit.sh of a run's folder, and control/submit.toml, which it trains.
struct BatchFile {
  std::string run, file, script;
};
Result<BatchFile> write_batch_file(const std::string& config, Overrides overrides,
                                   const std::string& run);
/// Hands a script to sbatch; the job's number.
Result<std::string> submit_batch_file(const std::string& file);
/// Writes control/submit.toml and control/submit.sh into the run's folder, prints the script, and
/// hands it to sbatch unless dry_run.
Status submit_command(const std::string& config, Overrides overrides, const std::string& run,
                      bool dry_run);
/// The last command of the batch script; code: srun's. Requeues the job if the run wants to go on.
/// Returns the job's exit code.
int requeue_command(const std::string& run, int code);

/// By every task, once the run is over: if the batch script has died with its host, one of them
/// ends or requeues the job in its stead. Without it a job that outlives lost hosts (--no-kill)
/// would keep the others until its time limit. That task blocks until Slurm has noticed the loss.
void stand_in_for_script(const std::string& run, const slurm::Task& task, int code);

/// Inside a job: what a node that failed its diagnosis means for Slurm. Notes it for the next
/// requeue, and drains it if this user may. Blocks for as long as scontrol does. Returns an event's
/// kind and reason; an empty kind outside a job.
std::pair<std::string, std::string> drain_in_slurm(const std::string& run, const std::string& host,
                                                   const std::string& reason);

}  // namespace simplescale
