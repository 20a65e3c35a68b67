// `train`: checks the configuration and this host, creates or resumes the run's folder, starts one
// node agent per node on this machine, and prints the progress. As a task of srun it runs a single
// agent instead (app/slurm/task.cpp).
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/commands/run_status.hpp"
#include "app/launch/agent_launcher.hpp"
#include "app/launch/run_start.hpp"
#include "app/launch/run_view.hpp"
#include "app/processes/agent.hpp"
#include "app/processes/supervisor_process.hpp"
#include "app/slurm/job.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// cluster.device = "cuda" needs an NVIDIA driver on this host.
Status check_device(const Config& config) {
  if (config.cluster.device != DeviceKind::cuda) return {};
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver)
    return Status(
        Code::bad_config,
        "cluster.device = \"cuda\": this host has no NVIDIA driver (libcuda.so.1); install "
        "it, or use \"auto\" or \"cpu\"");
  dlclose(driver);
  return {};
}

/// Everything before the first process starts: checks, data, the run's folder. Returns the run's
/// lock.
Result<RunLock> prepare_run(const Config& config, const Plan& plan, int trainers_on_host,
                            bool oversubscribe) {
  const RunFolder run{run_folder(config)};
  SS_RETURN_IF_ERROR(check_run_folder(run, config));  // before anything is written
  // Before preflight: it would complain about the HTTP port that the running run of this folder
  // uses.
  if (RunLock::held(run)) SS_RETURN_IF_ERROR(lock_run(run).status());
  SS_RETURN_IF_ERROR(check_device(config));
  PreflightInput input;
  input.trainers_on_host = trainers_on_host;
  input.oversubscribe = oversubscribe;
  input.prepares_data = needs_preparation(config);
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  if (const std::string warning = crowd_warning(config, input); !warning.empty())
    std::fprintf(stderr, "simplescale: warning: %s\n", warning.c_str());
  SS_RETURN_IF_ERROR(prepare_and_check_data(config, plan));
  SS_ASSIGN(RunLock lock, lock_run(run));
  SS_RETURN_IF_ERROR(open_run_folder(run, config, plan));
  return lock;
}

volatile sig_atomic_t interrupts = 0, last_signal = 0;
void on_interrupt(int signal) {
  last_signal = signal;
  interrupts = interrupts + 1;
}

/// Number of nodes with an agent, spares included.
int agent_count(const Config& config) {
  return static_cast<int>(config.cluster.nodes + config.cluster.spares);
}

/// Runs all nodes on this machine: starts the agents, passes signals on, prints progress, and waits
/// for the end of all processes.
Status train_here(const Config& config, const Plan& plan, bool oversubscribe) {
  const RunFolder run{run_folder(config)};
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  const int trainers = nodes * plan.topology.trainers_per_node;
  SS_ASSIGN(const RunLock lock, prepare_run(config, plan, trainers, oversubscribe));
  const std::string instance = unique_id();
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  RunView view(run, config, plan);
  SS_RETURN_IF_ERROR(EpochFiles(run, instance).begin());
  const int cores = usable_cores();
  AgentLauncher launcher(run, config, instance,
                         threads_per_trainer(config, cores, plan.topology.world()));
  auto gone = std::make_shared<std::atomic<bool>>(false);
  const FolderWatch folder_watch(run, [gone] { *gone = true; });
  std::optional<std::chrono::steady_clock::time_point> gone_at;
  for (int node = 0; node < agent_count(config); ++node) SS_RETURN_IF_ERROR(launcher.start(node));
  const std::chrono::milliseconds shutdown(config.supervision.shutdown_ms);
  int passed = 0;
  while (launcher.poll()) {
    if (interrupts > passed) {
      ++passed;
      view.print_line(
          passed == 1 ? "stopping after this step and saving; press Ctrl-C again to stop at once"
                      : "stopping at once");
      launcher.signal(passed > 2 ? SIGKILL : passed > 1 ? SIGINT : last_signal);
    }
    if (*gone && !gone_at) {  // the agents notice it, too, and end
      gone_at = std::chrono::steady_clock::now();
      launcher.stop_restarting();
      view.print_line(run_gone_message(run));
    }
    if (gone_at && std::chrono::steady_clock::now() - *gone_at > 2 * shutdown)
      launcher.signal(SIGKILL);
    view.update();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  launcher.reap_remaining(config.supervision.shutdown_ms);
  unlink_shared_memory("ss-" + instance + "-");
  if (folder_is_gone(run))
    return Status(Code::io, run_gone_message(run) + "; all its processes have ended");
  return view.finish(launcher.exit_code(), launcher.killed_agents(), launcher.reason());
}

}  // namespace

Status train_command(const std::string& config_file, Overrides overrides, const std::string& run,
                     bool oversubscribe) {
  SS_ASSIGN(RunStart start, resolve_run_start(config_file, std::move(overrides), run));
  const auto task = slurm_task();
  SS_ASSIGN(const bool finished,
            already_finished({run_folder(start.config)}, start.config, start.plan));
  if (finished) return {};
  if (task) return train_in_slurm(std::move(start), *task, oversubscribe);
  if (std::getenv("SLURM_JOB_ID"))
    std::fprintf(
        stderr,
        "simplescale: not started by srun, so all nodes run on this host; to use the whole "
        "allocation, run: srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 simplescale "
        "train ...\n");
  return train_here(start.config, start.plan, oversubscribe);
}

Status resume_command(const std::string& run, Overrides overrides, bool oversubscribe) {
  SS_RETURN_IF_ERROR(check_is_run(run));
  return train_command(RunFolder{run}.config(), std::move(overrides), run, oversubscribe);
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
