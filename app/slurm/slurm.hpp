// Pure functions about Slurm: the environment of a task, the batch script, and whether a job that
// has ended is requeued.
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

/// A task of srun, or the command of one of several hosts (hosts.hpp): one node agent. Several tasks
/// may run on one host.
struct Task {
  int task = 0, tasks = 1;                // rank and number of tasks in the step
  int local_task = 0, tasks_on_host = 1;  // the same on this host
  bool own_gpus = false;                  // true: it sees only its own GPUs (--gpus-per-task, ...)
  bool shares_gpus = false;               // true: all tasks use host memory, since some share GPUs
  bool other_hosts = false;               // true: tasks are, or may come back, on other hosts
  std::string host;                       // Slurm's name of the host; "" if unknown
  std::string instance;                   // id of this start of the run: job.step.restarts
};
/// Of kTaskVariable, or of srun's variables. Nothing outside srun, in the shell that salloc opens,
/// and if the numbers are invalid.
std::optional<Task> task_of(const Environment& environment);
/// The variable by which a command that srun has not started tells its processes their task, and
/// its value.
inline constexpr const char* kTaskVariable = "SIMPLESCALE_TASK";
std::string text_of(const Task& task);

/// Number of hosts of the allocation if this process runs in its shell or batch script; 0 outside
/// an allocation and in a step of srun.
int allocation_of(const Environment& environment);

/// The host names in a list such as "n[01-03,7],gpu1". Empty if the list has another form, or more
/// than 100,000 names.
std::vector<std::string> hosts_of(const std::string& list);
/// The host of a task under block distribution. tasks_per_node: such as "2(x3),1". "" if it does
/// not cover the task.
std::string host_of_task(const std::vector<std::string>& hosts, const std::string& tasks_per_node,
                         int task);

/// Number of tasks on host `index` of a list such as "2(x3),1"; 1 if the list does not cover it.
int tasks_on_node(const std::string& text, int index);

/// Name of the file in the run's logs that Slurm, srun and the batch script write to. Only the
/// first task reads it, since it runs on the script's host; "" for every other task.
std::string batch_log(const std::optional<Task>& task);

/// True for a name that may be passed to Slurm's commands: letters, digits, '-', '_', '.',
/// beginning with a letter or digit; at most 64 characters.
bool valid_node_name(const std::string& name);
/// The text as one printable line without quotes or backslashes, at most 200 characters.
std::string sanitized_reason(const std::string& text);

/// The script for sbatch. program: path of simplescale; tasks: nodes and spares. bad_config: a
/// value that cannot be used in a script.
Result<std::string> batch_script(const Config& config, const std::string& program, int tasks);
/// The script of a job array with one element per run. Its options are those of `batch_script`, the
/// script of any of the runs; each element executes its run's control/submit.sh. folder: the
/// sweep's; runs: the runs' folders.
Result<std::string> array_script(const std::string& batch_script, const std::string& name,
                                 const std::string& folder, const std::vector<std::string>& runs);

// --- The end of a job ---

/// Stored in control/requeues.json from one requeue to the next.
struct Requeues {
  std::string job;
  uint64_t step = 0;      // of the newest checkpoint at the last requeue
  int64_t count = 0;      // requeues of this job
  int64_t fruitless = 0;  // requeues in a row without a newer checkpoint
};
struct JobEnd {
  std::string job;
  int code = 0;               // the run's exit code
  bool running = true;        // Slurm's state of the job; false: cancelled, or out of time
  uint64_t step = 0;          // of the newest checkpoint
  int64_t requeues_max = 0;   // slurm.max_requeues
  int64_t fruitless_max = 0;  // supervision.give_up_after_cycles
};
struct RequeueDecision {
  bool requeue = false;
  int code = 0;  // the job's exit code
  std::string reason;
  Requeues next;  // to store before the requeue
};
RequeueDecision decide_requeue(const JobEnd& end, const Requeues& before);

/// A node of the run as control/status.json last showed it.
struct LastKnownNode {
  std::string name, host;
  bool lost = false;
};
/// True if some node is lost and `name` is the first node that is not: it acts for the lost script.
bool is_first_survivor(const std::vector<LastKnownNode>& nodes, const std::string& name);
/// True if the batch script's host may be lost: n0, which always runs there, is lost, and no other
/// node on that host survives. (The supervisor does not know the host of a node that was lost
/// together with an earlier supervisor.)
bool script_may_be_lost(const std::vector<LastKnownNode>& nodes, const std::string& script_host);

/// Value of `name` in a line of `scontrol show job --oneliner`, such as "JobState=RUNNING"; "" if
/// it is not there.
std::string field(const std::string& line, const std::string& name);
/// `list`, which may hold ranges, followed by those names of `more` that it does not hold, sorted.
std::string merge_node_lists(const std::string& list, const std::vector<std::string>& more);

}  // namespace simplescale::slurm
