// `train` as one of several tasks of a run (of srun, or the commands of several hosts): runs one
// node's agent. The task that holds the run's lock prepares the run and prints its progress; when
// that task's host dies, another task takes the lock.
#pragma once

#include <optional>
#include <string>

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
/// Refuses GPUs on a host that lacks one of the configuration's trusted networks, and a host on
/// which UCX cannot start.
Status check_trusted_networks(const Config& config, const slurm::Task& task);
/// True if a task has prepared this start of the run, or has failed to prepare it.
bool is_prepared(const RunFolder& run, const std::string& instance);
bool is_preparation_failed(const RunFolder& run, const std::string& instance);

/// Runs one node agent of a run with several tasks. place: this command's place, if srun did not
/// start it. With a place, SIGINT and SIGTERM end only this node, unless all commands receive one.
/// Returns only if the run could not begin. Otherwise exits the process with the run's exit code,
/// or with 75 if only this node has ended.
Status train_as_task(RunStart start, const slurm::Task& task, bool oversubscribe,
                     const HostPlace* place = nullptr);

}  // namespace simplescale
