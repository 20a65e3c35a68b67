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
#include "runtime/app/prepare_data.hpp"
#include "runtime/app/watch.hpp"
#include "runtime/base/log.hpp"
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
  std::map<pid_t, int> agents;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int node = 0; node < nodes; ++node) {
    SpawnOptions command;
    command.argv = {program_folder() + "/simplescale",
                    "agent",
                    "--run",
                    run.path,
                    "--node",
                    std::to_string(node)};
    command.environment = {{"SIMPLESCALE_INSTANCE", instance},
                           {"SIMPLESCALE_THREADS", std::to_string(threads_per_trainer(
                                                       config, cores, plan.topology.world()))}};
    command.output = run.logs() + "/n" + std::to_string(node) + ".log";
    auto child = spawn(command);
    if (!child.ok()) {
      for (const auto& [pid, n] : agents) kill(pid, SIGKILL);
      return child.status();
    }
    agents[*child] = node;
  }
  int passed = 0, first_code = -1;
  std::string dead;
  while (!agents.empty()) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (auto found = agents.find(pid); pid > 0 && found != agents.end()) {
      if (found->second == 0) first_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      if (!WIFEXITED(status))
        dead += " n" + std::to_string(found->second) + " was killed by signal " +
                std::to_string(WTERMSIG(status)) + ";";
      agents.erase(found);
      continue;
    }
    if (interrupts > passed) {
      ++passed;
      view.say(passed == 1 ? "stopping after this step, and saving (again: at once)"
                           : "stopping at once");
      for (const auto& [agent, node] : agents)
        if (node == 0 || passed > 1) kill(agent, SIGINT);
    }
    if (interrupts > 2)
      for (const auto& [agent, node] : agents) kill(agent, SIGKILL);
    view.update();
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // a view for people, not a synchronisation
  }
  unlink_shared_memory("ss-" + instance + "-");
  return view.end(first_code, dead);
}

Status train_in_slurm(Config config, const Plan& plan, const SlurmTask& task) {
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  if (task.tasks != nodes)
    return Status(Code::bad_config, "srun started " + std::to_string(task.tasks) +
                                        " tasks, the configuration has " + std::to_string(nodes) +
                                        " nodes, spares included: srun --nodes=" +
                                        std::to_string(nodes) + " --ntasks-per-node=1");
  const RunFolder run{run_folder(config)};
  std::optional<RunLock> lock;
  if (task.task == 0) {
    SS_ASSIGN(lock, get_ready(config, plan, plan.topology.trainers_per_node));
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
  setenv("SIMPLESCALE_THREADS", std::to_string(threads).c_str(), 1);
  const int code = run_agent_process({run.path, task.task, task.instance});
  std::exit(code);  // the agent has said why
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

}  // namespace simplescale
