// `train` as a task of srun: runs one node's agent. The task that holds the run's lock prepares the
// run and prints its progress; when that task's host dies, another task takes the lock.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/launch/agent_launcher.hpp"
#include "app/launch/bucket_start.hpp"
#include "app/launch/prepare_data.hpp"
#include "app/launch/run_view.hpp"
#include "app/slurm/job.hpp"
#include "app/terminal.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/training/names.hpp"
#include "transport/nccl_network.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

volatile sig_atomic_t signals = 0, last_signal = 0;
void on_signal(int signal) {
  last_signal = signal;
  signals = signals + 1;
}

/// Files in the run's folder by which the tasks of this start of the run follow its preparation.
struct PreparationFiles {
  std::string ready, failed, preparing;
  PreparationFiles(const RunFolder& run, const std::string& instance)
      : ready(run.control() + "/ready-" + instance),
        failed(run.control() + "/failed-" + instance),
        preparing(run.control() + "/preparing-" + instance) {}
};

void remove_old_preparation_files(const RunFolder& run, const std::string& instance) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run.control(), error)) {
    const std::string name = entry.path().filename().string();
    for (const char* kind : {"ready-", "failed-", "preparing-"})
      if (name.starts_with(kind) && name != kind + instance) fs::remove(entry.path(), error);
  }
}

/// Called by the task that holds the run's lock.
Status prepare_run(const RunFolder& run, const RunStart& start, const std::string& instance) {
  remove_old_preparation_files(run, instance);
  SS_ASSIGN(const RunData data, prepare_and_check_data(start.config, start.plan));
  SS_RETURN_IF_ERROR(open_run_folder(run, start.config, start.plan, data));
  return EpochFiles(run, instance).begin();
}

/// Why another task could not prepare the run. text: of its file.
Status failure_in(const std::string& file, const std::string& text) {
  const auto document = parse_json(text);
  const Status damaged(Code::requeue, file + " is damaged");
  if (!document.is_object()) return damaged;
  const auto code = document.find("code"), message = document.find("message");
  if (code == document.end() || !code->is_number_unsigned()) return damaged;
  if (message == document.end() || !message->is_string()) return damaged;
  const auto number = static_cast<unsigned>(std::min<uint64_t>(code->get<uint64_t>(), UINT_MAX));
  return Status(is_code(number) && number != 0 ? static_cast<Code>(number) : Code::internal,
                message->get<std::string>());
}

/// Returns once the run is prepared. The task that takes the lock prepares it, and the other tasks
/// help to encode its text; `lock` is set if that is this task. Errors: the preparation failed (in
/// any task), or another run holds the lock.
Status wait_until_prepared(const RunFolder& run, const RunStart& start, const std::string& instance,
                           std::optional<RunLock>& lock) {
  SS_RETURN_IF_ERROR(make_control(run));  // or another user could, with a file that says: prepared
  const PreparationFiles files(run, instance);
  const auto deadline = Clock::now() + milliseconds(start.config.cluster.join_timeout_ms);
  auto help_at = Clock::now();
  while (true) {
    std::error_code ignored;  // a disk that does not answer is asked again
    if (fs::exists(files.ready, ignored)) return {};
    if (auto text = read_text(files.failed); text.ok()) return failure_in(files.failed, *text);
    if (lock) {
      SS_RETURN_IF_ERROR(write_file_atomic(files.preparing, "\n"));
      const Status made = prepare_run(run, start, instance);
      if (made.ok()) return write_file_atomic(files.ready, "\n");
      const nlohmann::json document = {{"code", static_cast<unsigned>(made.code())},
                                       {"message", made.message()}};
      SS_RETURN_IF_ERROR(write_file_atomic(files.failed, json_text(document) + "\n"));
      return made;
    }
    const bool preparing = fs::exists(files.preparing, ignored);
    if (auto taken = lock_run(run); taken.ok()) {
      lock = taken.take();
    } else if (preparing && Clock::now() >= help_at) {
      help_prepare_data(start.config);
      help_at = Clock::now() + std::chrono::seconds(1);
    } else if (!preparing && Clock::now() > deadline) {
      return taken.status();  // another start of the run holds it
    } else {
      std::this_thread::sleep_for(milliseconds(50));  // polls: a shared file system
    }
  }
}

/// Makes tasks beyond cluster.nodes spares. bad_config: fewer tasks than nodes.
Status check_task_count(RunStart& start, const slurm::Task& task) {
  const int nodes = start.plan.topology.nodes;
  if (task.tasks < nodes) {
    const std::string wanted = std::to_string(nodes);
    return Status(Code::bad_config, "srun started " + std::to_string(task.tasks) +
                                        " tasks, but cluster.nodes = " + wanted +
                                        ": use srun --ntasks=" + wanted +
                                        " --ntasks-per-node=1, or more tasks for spares");
  }
  start.config.cluster.spares = task.tasks - nodes;
  return {};
}

bool spans_hosts(const slurm::Task& task) {
  return task.tasks_on_host < task.tasks;
}

/// Refuses GPUs on a host that is not on every trusted network of the configuration.
Status check_gpu_network(const Config& config, const slurm::Task& task) {
  const std::string& trusted = config.transport.trusted_networks;
  if (config.cluster.device != DeviceKind::cuda || !nccl_is_allowed(spans_hosts(task), trusted))
    return {};
  return nccl_variables(spans_hosts(task), trusted, local_addresses()).status();
}

/// Passes one signal to the agent that this process has received and not passed on yet.
void pass_signals(AgentLauncher& launcher, int& passed) {
  if (signals <= passed) return;
  ++passed;
  launcher.signal(last_signal);
}

/// Prints how the run ended: the task with the view prints the summary, every other task its
/// failure. Uploads the last checkpoint. Returns the exit code; -1: the agent was killed.
int print_end(const RunFolder& run, const Config& config, const slurm::Task& task,
              const AgentLauncher& launcher, RunView* view) {
  const int code = launcher.exit_code();
  if (folder_is_gone(run)) {
    terminal::error("simplescale: %s\n", run_gone_message(run).c_str());
    return exit_code(Code::io);
  }
  if (view) {
    const Status end = view->finish(code, launcher.killed_agents(), launcher.reason());
    if (!end.ok()) terminal::error("simplescale: %s\n", end.message().c_str());
    const Status uploaded =
        finish_upload(run, config, [before = signals] { return signals > before; });
    if (!uploaded.ok()) terminal::error("simplescale: %s\n", uploaded.message().c_str());
    if (!uploaded.ok() && code == 0) return exit_code(uploaded.code());
  } else if (code != 0) {
    terminal::error("simplescale: n%d: %s;%s log is %s/n%d.log\n", task.task,
                    launcher.reason().empty() ? "ended early" : launcher.reason().c_str(),
                    launcher.killed_agents().c_str(), run.logs().c_str(), task.task);
  }
  return code;
}

}  // namespace

std::optional<slurm::Task> slurm_task() {
  return slurm::task_of(environment_variable);
}

Status train_in_slurm(RunStart start, const slurm::Task& task, bool oversubscribe) {
  SS_RETURN_IF_ERROR(check_task_count(start, task));
  const Config& config = start.config;
  const Plan& plan = start.plan;
  const RunFolder run{run_folder(config)};
  const int slots = plan.topology.trainers_per_node;
  PreflightInput input;
  input.trainers_on_host = slots * task.tasks_on_host;
  input.writes_checkpoints = task.task == 0;
  input.oversubscribe = oversubscribe;
  input.prepares_data = needs_preparation(config);
  input.staged = !nccl_is_allowed(spans_hosts(task), config.transport.trusted_networks);
  // Refuses a folder of something else before anything is written. Once `control` exists, another
  // task may already be preparing the run.
  if (!fs::exists(run.control()))
    if (Status status = check_run_folder(run, config); !status.ok() && !fs::exists(run.control()))
      return status;
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  SS_RETURN_IF_ERROR(check_gpu_network(config, task));
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  // A write beyond the limit of file sizes fails with EFBIG instead of killing the process. The
  // agent and its trainers inherit this.
  signal(SIGXFSZ, SIG_IGN);
  std::optional<RunLock> lock;
  SS_RETURN_IF_ERROR(wait_until_prepared(run, start, task.instance, lock));
  if (signals > 0) return Status(Code::requeue, "stopped by a signal before the run began");

  const int cores = slurm::task_cores(task, usable_cores(),
                                      static_cast<int>(std::thread::hardware_concurrency()));
  AgentLauncher launcher(run, config, task.instance, threads_per_trainer(config, cores, slots));
  SS_RETURN_IF_ERROR(launcher.start(task.task));
  std::unique_ptr<RunView> view;
  auto lock_due = Clock::now();
  for (int passed = 0; launcher.poll();) {
    pass_signals(launcher, passed);
    // Some task must hold the lock while the run lives: `status` and other starts depend on it.
    if (!lock && Clock::now() >= lock_due) {
      if (auto taken = RunLock::take(run); taken.ok()) lock = taken.take();
      lock_due = Clock::now() + std::chrono::seconds(1);
    }
    if (lock && !view) view = std::make_unique<RunView>(run, config, plan);
    if (view) view->update();
    std::this_thread::sleep_for(milliseconds(20));
  }
  launcher.reap_remaining(config.supervision.shutdown_ms);
  // Shared memory that a killed agent has left on this host.
  const std::string mine = "ss-" + task.instance + "-" + node_name(task.task);
  unlink_shared_memory(mine + ".");
  unlink_shared_memory(mine + "-");
  int code = print_end(run, config, task, launcher, view.get());
  std::fflush(nullptr);
  if (code < 0) code = exit_code(Code::requeue);
  act_for_lost_script(run.path, task, code);
  std::exit(code);
}

}  // namespace simplescale
