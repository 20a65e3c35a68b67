// `train` as a task of srun: keeps one node's agent. Which task prepares the run, and which shows
// how it goes, is settled by the run's lock; when its holder's host dies, another takes over.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/launch/agent_launcher.hpp"
#include "app/launch/run_view.hpp"
#include "app/slurm/job.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/training/names.hpp"

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

/// Where the tasks of this start of the run tell each other how far its preparation is.
struct Words {
  std::string ready, failed, preparing;
  Words(const RunFolder& run, const std::string& instance)
      : ready(run.control() + "/ready-" + instance),
        failed(run.control() + "/failed-" + instance),
        preparing(run.control() + "/preparing-" + instance) {}
};

void remove_old_words(const RunFolder& run, const std::string& instance) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run.control(), error)) {
    const std::string name = entry.path().filename().string();
    for (const char* kind : {"ready-", "failed-", "preparing-"})
      if (name.starts_with(kind) && name != kind + instance) fs::remove(entry.path(), error);
  }
}

/// By the holder of the lock.
Status prepare(const RunFolder& run, const RunStart& start, const std::string& instance) {
  remove_old_words(run, instance);
  SS_RETURN_IF_ERROR(ready_data(start.config, start.plan));
  SS_RETURN_IF_ERROR(open_run_folder(run, start.config));
  return EpochFiles(run, instance).begin();
}

/// Returns once the run is prepared, by whichever task got the lock.
Status come_in(const RunFolder& run, const RunStart& start, const std::string& instance,
               std::optional<RunLock>& lock) {
  const Words words(run, instance);
  const auto deadline = Clock::now() + milliseconds(start.config.cluster.join_timeout_ms);
  while (true) {
    if (fs::exists(words.ready)) return {};
    if (auto text = read_text(words.failed); text.ok()) {
      const auto document = nlohmann::json::parse(*text, nullptr, false);
      if (!document.is_object()) return Status(Code::requeue, words.failed + " is damaged");
      const unsigned code = document.value("code", 0U);
      return Status(is_code(code) && code != 0 ? static_cast<Code>(code) : Code::internal,
                    document.value("message", ""));
    }
    if (lock) {
      SS_RETURN_IF_ERROR(write_file_atomic(words.preparing, "\n"));
      const Status made = prepare(run, start, instance);
      if (made.ok()) return write_file_atomic(words.ready, "\n");
      const nlohmann::json document = {{"code", static_cast<unsigned>(made.code())},
                                       {"message", made.message()}};
      SS_RETURN_IF_ERROR(write_file_atomic(words.failed, json_text(document) + "\n"));
      return made;
    }
    if (auto taken = lock_run(run); taken.ok())
      lock = taken.take();
    else if (Clock::now() > deadline && !fs::exists(words.preparing))
      return taken.status();  // held by another run
    else
      std::this_thread::sleep_for(milliseconds(50));  // a shared file system tells no changes
  }
}

/// As many nodes as there are tasks: what is over is a spare.
Status fit_tasks(RunStart& start, const slurm::Task& task) {
  const int nodes = start.plan.topology.nodes;
  if (task.tasks < nodes) {
    const std::string wanted = std::to_string(nodes);
    return Status(Code::bad_config, "srun started " + std::to_string(task.tasks) +
                                        " tasks, the configuration has " + wanted +
                                        " nodes: srun --ntasks=" + wanted +
                                        " --ntasks-per-node=1, and more for spares");
  }
  start.config.cluster.spares = task.tasks - nodes;
  return {};
}

void follow_signals(AgentLauncher& launcher, int& passed) {
  if (signals <= passed) return;
  ++passed;
  launcher.signal(last_signal);
}

}  // namespace

std::optional<slurm::Task> slurm_task() {
  return slurm::task_of(environment_variable);
}

Status train_in_slurm(RunStart start, const slurm::Task& task, bool oversubscribe) {
  SS_RETURN_IF_ERROR(fit_tasks(start, task));
  const Config& config = start.config;
  const Plan& plan = start.plan;
  const RunFolder run{run_folder(config)};
  const int slots = plan.topology.trainers_per_node;
  PreflightInput input;
  input.trainers_on_host = slots * task.tasks_on_host;
  input.writes_checkpoints = task.task == 0;
  input.oversubscribe = oversubscribe;
  input.prepares_data = needs_preparation(config);
  // A foreign folder stays as it is. Once there is `control`, another task may have begun the run.
  if (!fs::exists(run.control()))
    if (Status status = check_run_folder(run, config); !status.ok() && !fs::exists(run.control()))
      return status;
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  // A limit of file sizes is an error of the disk, not a death; agent and trainers inherit this.
  signal(SIGXFSZ, SIG_IGN);
  std::optional<RunLock> lock;
  SS_RETURN_IF_ERROR(come_in(run, start, task.instance, lock));
  if (signals > 0) return Status(Code::requeue, "told to stop before the run began");

  const int cores = slurm::task_cores(task, usable_cores(),
                                      static_cast<int>(std::thread::hardware_concurrency()));
  AgentLauncher launcher(run, config, task.instance, threads_per_trainer(config, cores, slots));
  SS_RETURN_IF_ERROR(launcher.start(task.task));
  std::unique_ptr<RunView> view;
  auto lock_due = Clock::now();
  for (int passed = 0; launcher.look();) {
    follow_signals(launcher, passed);
    // While the run lives somebody holds its lock: `status` and other starts go by that.
    if (!lock && Clock::now() >= lock_due) {
      if (auto taken = RunLock::take(run); taken.ok()) lock = taken.take();
      lock_due = Clock::now() + std::chrono::seconds(1);
    }
    if (lock && !view) view = std::make_unique<RunView>(run, config, plan, start.config_file);
    if (view) view->update();
    std::this_thread::sleep_for(milliseconds(20));  // until the agent or a signal
  }
  launcher.end_others(config.supervision.shutdown_ms);
  // What an agent that was killed for good has left on this host.
  const std::string mine = "ss-" + task.instance + "-" + node_name(task.task);
  unlink_shared_memory(mine + ".");
  unlink_shared_memory(mine + "-");
  int code = launcher.exit_code();
  if (folder_is_gone(run)) {
    std::fprintf(stderr, "simplescale: %s\n", run_gone_message(run).c_str());
    code = exit_code(Code::io);
  } else if (view) {
    const Status end = view->end(code, launcher.dead(), launcher.reason());
    if (!end.ok()) std::fprintf(stderr, "simplescale: %s\n", end.message().c_str());
  } else if (code != 0) {
    std::fprintf(stderr, "simplescale: n%d: %s;%s log is %s/n%d.log\n", task.task,
                 launcher.reason().empty() ? "ended early" : launcher.reason().c_str(),
                 launcher.dead().c_str(), run.logs().c_str(), task.task);
  }
  std::fflush(nullptr);
  if (code < 0) code = exit_code(Code::requeue);
  stand_in_for_script(run.path, task, code);
  std::exit(code);
}

}  // namespace simplescale
