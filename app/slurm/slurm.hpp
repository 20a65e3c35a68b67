// What Slurm tells a task, what the batch script says, and what becomes of a job that has ended.
// Pure functions; who runs commands is app/slurm/job.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale::slurm {

using Environment = std::function<std::string(const char* name)>;  // "": not set

/// A task of srun: one node agent. Several may be on one host.
struct Task {
  int task = 0, tasks = 1;
  int local_task = 0, tasks_on_host = 1;
  bool own_gpus = false;  // this task sees only its own GPUs (--gpus-per-task)
  std::string host;       // Slurm's name of the node; "" if it tells none
  std::string instance;   // of this start of the run: job, step, restart
};
/// Nothing outside srun, and in the shell that salloc opens. Numbers that make no sense: nothing.
std::optional<Task> task_of(const Environment& environment);

/// Hosts of the allocation in whose shell or script this is, outside any step of srun; 0: in none.
int allocation_of(const Environment& environment);

/// The names in Slurm's "n[01-03,7],gpu1"; empty if the text is not understood, or has more than
/// 100,000.
std::vector<std::string> hosts_of(const std::string& list);
/// Which of these hosts a task is on by the block distribution of "2(x3),1"; "" if that does not
/// tell.
std::string host_of_task(const std::vector<std::string>& hosts, const std::string& tasks_per_node,
                         int task);

/// The tasks on the node `index` of "2(x3),1"; 1 if the text does not tell.
int tasks_on_node(const std::string& text, int index);

/// Which trainer slots of this host are the task's: slot s of `slots` is `first + s` of `total`.
struct HostSlots {
  int first = 0, total = 1;
};
HostSlots host_slots(const Task& task, int slots);

/// The same for its CPUs: those of a mask narrower than the host are its own.
HostSlots cpu_slots(const Task& task, int slots, int bound, int online);
/// The file in the run's logs to which Slurm, srun and the batch script write, to be read by the
/// first task: it runs where they do. "" for the others.
std::string batch_log(const std::optional<Task>& task);

/// CPUs for the task's trainers. bound: those of its CPU mask; online: of the host. A mask of the
/// whole host is shared with the other tasks on it.
int task_cores(const Task& task, int bound, int online);

/// A name that may be given to Slurm's commands: letters, digits, '-', '_', '.'; at most 64.
bool valid_node_name(const std::string& name);
/// Printable, without quotes, one line, at most 200 characters.
std::string plain_reason(const std::string& text);

/// For sbatch. program: the path of simplescale; tasks: nodes and spares. bad_config: a value that
/// cannot stand in a script.
Result<std::string> batch_script(const Config& config, const std::string& program, int tasks);
/// The script of a job array with an element a run: batch_script()'s options of one of them, and
/// each element goes on as its run's own control/submit.sh. folder: of the sweep.
Result<std::string> array_script(const std::string& batch_script, const std::string& name,
                                 const std::string& folder, const std::vector<std::string>& runs);

// --- The end of a job ---

/// Kept in the run's folder from one requeue to the next.
struct Requeues {
  std::string job;
  uint64_t step = 0;      // newest checkpoint at the last requeue
  int64_t count = 0;      // requeues of this job
  int64_t fruitless = 0;  // in a row without a newer checkpoint
};
struct JobEnd {
  std::string job;
  int code = 0;           // how the run ended
  bool running = true;    // for Slurm; false: cancelled, or out of time
  uint64_t step = 0;      // newest checkpoint
  int64_t most = 0;       // requeues allowed
  int64_t fruitless = 0;  // of them in a row without a newer checkpoint
};
struct Verdict {
  bool requeue = false;
  int code = 0;  // of the job
  std::string reason;
  Requeues next;  // to be kept
};
Verdict judge(const JobEnd& end, const Requeues& before);

/// A node of ours, by the run's last word on it.
struct Seat {
  std::string name, host;
  bool lost = false;
};
/// Whether nodes have been lost and `name` is the first of the others, so that it acts for them.
bool first_of_the_others(const std::vector<Seat>& seats, const std::string& name);
/// Whether the batch script's host may be lost: the first node of ours is, which is always there,
/// and no other one there lives. (Who supervises does not know the host of a node that was lost
/// with the supervisor before.)
bool script_may_be_lost(const std::vector<Seat>& seats, const std::string& script_host);

/// "JobState=RUNNING" in a line of `scontrol show job --oneliner`; "" if there is none.
std::string field(const std::string& line, const std::string& name);
/// The names of both lists, each once, sorted; Slurm's own lists may hold ranges.
std::string merged_nodes(const std::string& list, const std::vector<std::string>& more);

}  // namespace simplescale::slurm
