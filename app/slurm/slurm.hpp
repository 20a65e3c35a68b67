// Pure functions for Slurm: the environment of a task, the batch script, and the decision to
// requeue a job that has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale::slurm {

/// Value of an environment variable; "" if it is not set.
using Environment = std::function<std::string(const char* name)>;

/// A task of srun, or a command on one of several hosts (hosts.hpp). It runs one node agent.
/// Several tasks may run on one host.
struct Task {
  int task = 0, tasks = 1;                // rank and number of tasks in the step
  int local_task = 0, tasks_on_host = 1;  // the same on this host
  bool own_gpus = false;                  // true: it sees only its own GPUs (--gpus-per-task, ...)
  bool shares_gpus = false;               // true: all tasks use host memory, since some share GPUs
  bool other_hosts = false;               // true: tasks are, or may return, on other hosts
  std::string host;                       // Slurm's name of the host; "" if unknown
  std::string instance;                   // id of this start of the run: job.step.restarts
};
/// Reads the task from kTaskVariable or from srun's variables. Nothing outside srun, in the shell
/// that salloc opens, and if the numbers are invalid.
std::optional<Task> task_of(const Environment& environment);
/// If srun has not started a command, the command tells its processes their task by this variable.
/// text_of() makes its value.
inline constexpr const char* kTaskVariable = "SIMPLESCALE_TASK";
std::string text_of(const Task& task);

/// Number of hosts of the allocation if this process runs in the allocation's shell or batch
/// script; 0 outside an allocation and in a step of srun.
int allocation_of(const Environment& environment);

/// The host names in a list such as "n[01-03,7],gpu1". Empty if the list has another form or more
/// than 100,000 names.
std::vector<std::string> hosts_of(const std::string& list);
/// The host of a task under block distribution. tasks_per_node: a list such as "2(x3),1". "" if the
/// list does not cover the task.
std::string host_of_task(const std::vector<std::string>& hosts, const std::string& tasks_per_node,
                         int task);

/// Number of tasks on host `index` of a list such as "2(x3),1"; 1 if the list does not cover it.
int tasks_on_node(const std::string& text, int index);

/// Name of the file in the run's logs that Slurm, srun and the batch script write to. Only the
/// first task reads it, because that task runs on the script's host; "" for every other task.
std::string batch_log(const std::optional<Task>& task);

/// True for a name that may be passed to Slurm's commands: letters, digits, '-', '_', '.',
/// beginning with a letter or digit; at most 64 characters.
bool valid_node_name(const std::string& name);
/// The text as one printable line without quotes or backslashes, at most 200 characters.
std::string sanitized_reason(const std::string& text);

/// The script for sbatch. program: path of simplescale; tasks: nodes and spares. bad_config: a
/// value that cannot be used in a script.
Result<std::string> batch_script(const Config& config, const std::string& program, int tasks);
/// The script of a job array with one element for each run. Its options are those of
/// `batch_script`, the script of any of the runs. Each element executes its run's
/// control/submit.sh. folder: the sweep's; runs: the runs' folders.
Result<std::string> array_script(const std::string& batch_script, const std::string& name,
                                 const std::string& folder, const std::vector<std::string>& runs);

// --- The end of a job ---

/// Stored in control/requeues.json between two requeues.
struct Requeues {
  std::string job;
  uint64_t step = 0;      // of the newest checkpoint at the last requeue
  int64_t count = 0;      // requeues of this job
  int64_t fruitless = 0;  // requeues in a row without a newer checkpoint
};
struct JobEnd {
  std::string job;
  int code = 0;               // the run's exit code
  bool running = true;        // Slurm's state of the job; false: cancelled, or its time is over
  uint64_t step = 0;          // of the newest checkpoint
  int64_t requeues_max = 0;   // slurm.max_requeues
  int64_t fruitless_max = 0;  // supervision.give_up_after_cycles
};
struct RequeueDecision {
  bool requeue = false;
  int code = 0;  // the job's exit code
  std::string reason;
  Requeues next;  // must be stored before the requeue
};
RequeueDecision decide_requeue(const JobEnd& end, const Requeues& before);

/// A node of the run in the newest control/status.json.
struct LastKnownNode {
  std::string name, host;
  bool lost = false;
};
/// True if some node is lost and `name` is the first node that is not: that node acts for the lost
/// script.
bool is_first_survivor(const std::vector<LastKnownNode>& nodes, const std::string& name);
/// True if the batch script's host may be lost: n0, which always runs there, is lost, and no other
/// node on that host survives. (A supervisor does not know the hosts of nodes that were lost
/// together with its predecessor.)
bool script_may_be_lost(const std::vector<LastKnownNode>& nodes, const std::string& script_host);

/// Value of `name` in a line of `scontrol show job --oneliner`, such as "JobState=RUNNING"; "" if
/// the line does not have it.
std::string field(const std::string& line, const std::string& name);
/// `list`, which may have ranges, and then the sorted names of `more` that it lacks.
std::string merge_node_lists(const std::string& list, const std::vector<std::string>& more);

}  // namespace simplescale::slurm
