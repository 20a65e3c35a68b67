// What simplescale does in and with a Slurm job: tasks (task.cpp), `submit`, the end of the batch
// script, draining nodes (job.cpp). It runs Slurm's commands without a shell, and passes node names
// to them only if slurm::valid_node_name() accepts them.
//
// app/slurm has everything that knows Slurm, and its replacement without Slurm (hosts.hpp).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/run_start.hpp"
#include "app/slurm/slurm.hpp"
#include "runtime/run/host_place.hpp"

namespace simplescale {

/// The task of this process, from its environment; nothing outside srun.
std::optional<slurm::Task> slurm_task();

/// Makes the tasks beyond cluster.nodes spares. bad_config: fewer tasks than nodes.
Status check_task_count(RunStart& start, int tasks);
/// bad_config: the folder of a new run has something else in it. Call it before anything is written
/// there: a folder with a control/ may be one that another task is already preparing.
Status check_new_folder(const RunFolder& run, const Config& config);
/// True if a task has prepared this start of the run, or has failed to prepare it.
bool is_prepared(const RunFolder& run, const std::string& instance);
bool is_preparation_failed(const RunFolder& run, const std::string& instance);

/// Runs one node agent of a run with several tasks. place: this command's place, if srun did not
/// start it. With a place, SIGINT and SIGTERM end only this node, unless all commands receive one.
/// Returns only if the run could not begin. Otherwise exits the process with the run's exit code,
/// or with 75 if only this node has ended.
Status train_as_task(RunStart start, const slurm::Task& task, bool oversubscribe,
                     const HostPlace* place = nullptr);

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
