// `train`: checks everything that can be checked, makes or finds the run's folder, starts a node
// agent per node on this machine (or is one, inside an srun), and shows how it goes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "runtime/app/agent.hpp"
#include "runtime/app/commands.hpp"
#include "runtime/app/keeper.hpp"
#include "runtime/app/prepare_data.hpp"
#include "runtime/app/supervisor_process.hpp"
#include "runtime/app/watch.hpp"
#include "runtime/base/epoch.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_folder.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// Under srun every task is one node's agent.
struct SlurmTask {
  int task, tasks;
  std::string instance;
};
std::optional<SlurmTask> slurm_task() {
  const char *task = variable("SLURM_PROCID"), *tasks = variable("SLURM_NTASKS"),
             *job = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID"),
             *restart = variable("SLURM_RESTART_COUNT");
  if (!task || !tasks || !job || !step) return std::nullopt;
  return SlurmTask{std::atoi(task), std::atoi(tasks),
                   std::string(job) + "." + step + "." + (restart ? restart : "0")};
}

/// Makes the run's folder, or checks that the one there is of this configuration.
Status open_run_folder(const RunFolder& run, const Config& config) {
  std::error_code error;
  if (fs::exists(run.config(), error)) {
    if (config.run.resume == Resume::never)
      return Status(Code::bad_config,
                    run.path +
                        " holds a run already and run.resume = \"never\"; give the new one a "
                        "folder of its own with --run=FOLDER");
    SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
    const auto differences = diff(before.config, config);
    if (!differences.empty()) {
      std::string text;
      for (const KeyDifference& d : differences)
        text += (text.empty() ? "" : ", ") + d.key + " was " + d.was + " and is now " + d.now;
      return Status(Code::bad_config, run.path + " holds a run of another configuration: " + text +
                                          "; start anew with --run=FOLDER");
    }
  } else if (fs::exists(run.path, error) && !fs::is_empty(run.path, error)) {
    // A start that went no further leaves `control`; an imported model to start from lies in
    // `checkpoints`.
    for (const auto& entry : fs::directory_iterator(run.path, error))
      if (entry.path().filename() != "control" && entry.path().filename() != "checkpoints")
        return Status(
            Code::bad_config,
            run.path +
                " exists, is not empty and is no run folder; choose another with --run=FOLDER");
  }
  fs::create_directories(run.logs(), error);
  if (!error) fs::create_directories(run.control(), error);
  if (!error) fs::create_directories(checkpoint_folder(config), error);
  if (error) return Status(Code::bad_config, "cannot make " + run.path + ": " + error.message());
  return write_file_atomic(run.config(), to_toml(config));
}

/// Everything before the first process. Leaves the run's folder ready.
Result<RunLock> get_ready(const Config& config, const Plan& plan, int trainers_on_host) {
  const RunFolder run{run_folder(config)};
  PreflightInput input;
  input.trainers_on_host = trainers_on_host;
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  SS_RETURN_IF_ERROR(prepare_data(config));
  SS_ASSIGN(const Dataset dataset, open_tokens(config, plan.shape));
  SS_RETURN_IF_ERROR(dataset.train.validate());
  if (dataset.validation.tokens() > 0) SS_RETURN_IF_ERROR(dataset.validation.validate());
  std::error_code error;
  fs::create_directories(run.control(), error);
  if (error)
    return Status(Code::bad_config, "cannot make " + run.control() + ": " + error.message());
  SS_ASSIGN(RunLock lock, RunLock::take(run));
  SS_RETURN_IF_ERROR(open_run_folder(run, config));
  return lock;
}

volatile sig_atomic_t interrupts = 0;
void on_interrupt(int) {
  interrupts = interrupts + 1;
}

/// Nodes that have an agent: those that train and those that wait.
int agents(const Config& config) {
  return static_cast<int>(config.cluster.nodes + config.cluster.spares);
}

volatile sig_atomic_t last_signal = 0;
void on_task_signal(int signal) {
  last_signal = signal;
  interrupts = interrupts + 1;
}

/// All nodes on this machine: starts the agents, passes signals on, shows progress, collects the
/// exit codes.
Status train_here(const Config& config, const Plan& plan, const std::string& config_file) {
  const RunFolder run{run_folder(config)};
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  const int trainers = nodes * plan.topology.trainers_per_node;
  SS_ASSIGN(const RunLock lock, get_ready(config, plan, trainers));
  const std::string instance = unique_id();
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  RunView view(run, config, plan, config_file);
  SS_RETURN_IF_ERROR(EpochFiles(run, instance).begin());
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  Keeper keeper(run, config, instance, threads_per_trainer(config, cores, plan.topology.world()));
  for (int node = 0; node < agents(config); ++node) SS_RETURN_IF_ERROR(keeper.start(node));
  int passed = 0;
  while (keeper.look()) {
    if (interrupts > passed) {
      ++passed;
      view.say(passed == 1 ? "stopping after this step, and saving (again: at once)"
                           : "stopping at once");
      keeper.signal(passed > 2 ? SIGKILL : SIGINT);
    }
    view.update();
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // a view for people, not a synchronisation
  }
  keeper.end_others(config.supervision.shutdown_ms);
  unlink_shared_memory("ss-" + instance + "-");
  return view.end(keeper.exit_code(), keeper.dead());
}

Status train_in_slurm(Config config, const Plan& plan, const SlurmTask& task) {
  if (task.tasks != agents(config))
    return Status(Code::bad_config, "srun started " + std::to_string(task.tasks) +
                                        " tasks, the configuration has " +
                                        std::to_string(agents(config)) + " nodes: srun --nodes=" +
                                        std::to_string(agents(config)) + " --ntasks-per-node=1");
  const RunFolder run{run_folder(config)};
  std::optional<RunLock> lock;
  if (task.task == 0) {
    SS_ASSIGN(lock, get_ready(config, plan, plan.topology.trainers_per_node));
    SS_RETURN_IF_ERROR(EpochFiles(run, task.instance).begin());
    SS_RETURN_IF_ERROR(write_file_atomic(run.control() + "/ready-" + task.instance, "ready\n"));
  } else {  // the first task prepares data and folder
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::milliseconds(config.cluster.join_timeout_ms) +
                          std::chrono::minutes(30);
    while (!fs::exists(run.control() + "/ready-" + task.instance)) {
      if (std::chrono::steady_clock::now() > deadline)
        return Status(Code::requeue, "the first task has not prepared " + run.path);
      std::this_thread::sleep_for(
          std::chrono::milliseconds(50));  // a shared file system tells no changes
    }
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = threads_per_trainer(config, cores, plan.topology.trainers_per_node);
  struct sigaction action {};
  action.sa_handler = on_task_signal;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  Keeper keeper(run, config, task.instance, threads);
  SS_RETURN_IF_ERROR(keeper.start(task.task));
  int passed = 0;
  while (keeper.look()) {
    if (interrupts > passed) {
      ++passed;
      keeper.signal(last_signal);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until the agent or a signal
  }
  keeper.end_others(config.supervision.shutdown_ms);
  const int code = keeper.exit_code();
  if (code != 0)
    std::fprintf(stderr, "simplescale: n%d: %s;%s log is %s/n%d.log\n", task.task,
                 keeper.reason().empty() ? "ended early" : keeper.reason().c_str(),
                 keeper.dead().c_str(), run.logs().c_str(), task.task);
  std::exit(code < 0 ? exit_code(Code::requeue) : code);
}

}  // namespace

Status train_command(const std::string& config_file, Overrides overrides, const std::string& run) {
  if (!run.empty()) overrides.push_back("--run.folder=" + run);
  SS_ASSIGN(LoadedConfig loaded, load_config(config_file, overrides));
  Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  config.train.global_batch_size = plan.global_batch_size;  // what the ledger is checked against
  // Processes start in other folders' company: paths in the run's config.toml are absolute.
  config.run.folder = fs::absolute(run_folder(config)).lexically_normal().string();
  if (source_is_tokens(config))
    config.data.source = fs::absolute(config.data.source).lexically_normal().string();
  config.data.folder = fs::absolute(data_folder(config)).lexically_normal().string();
  if (!config.checkpoint.folder.empty())
    config.checkpoint.folder = fs::absolute(config.checkpoint.folder).lexically_normal().string();
  if (const auto task = slurm_task()) return train_in_slurm(config, plan, *task);
  return train_here(config, plan, config_file);
}

int agent_command(const std::string& run, const std::string& node) {
  const char* instance = variable("SIMPLESCALE_INSTANCE");
  return run_agent_process({run, std::atoi(node.c_str()), instance ? instance : unique_id()});
}

int supervisor_command(const std::string& run, const std::string& node,
                       const std::string& standby_of) {
  const char* instance = variable("SIMPLESCALE_INSTANCE");
  return run_supervisor_process({run, node, instance ? instance : unique_id(), standby_of});
}

}  // namespace simplescale
