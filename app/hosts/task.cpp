#include "app/hosts/task.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "app/hosts/sharing.hpp"
#include "app/launch/agent_launcher.hpp"
#include "app/launch/attach.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/bucket_start.hpp"
#include "app/launch/prepare_data.hpp"
#include "app/launch/run_view.hpp"
#include "app/launch/stops_early.hpp"
#include "app/slurm/job.hpp"
#include "app/terminal.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/network.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/name_lock.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/term.hpp"
#include "runtime/training/names.hpp"
#include "transport/gpu/nccl_network.hpp"
#include "transport/ucx/library.hpp"

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

/// Files in the run's folder that show the tasks of this start of the run how its preparation
/// proceeds.
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
    for (const char* kind : {"ready-", "failed-", "preparing-", "hosts-"})
      if (name.starts_with(kind) && name != kind + instance) fs::remove_all(entry.path(), error);
  }
}

/// Prepares the run. Called by the task that holds the run's lock.
Status prepare_run(const RunFolder& run, const RunStart& start, const std::string& instance) {
  remove_old_preparation_files(run, instance);
  SS_ASSIGN(const RunData data, prepare_and_check_data(start.config, start.plan));
  SS_RETURN_IF_ERROR(open_run_folder(run, start.config, start.plan, data, start.rate_said));
  return TermFiles(run, instance).begin();
}

/// Why another task could not prepare the run. file, text: the file that this task wrote.
Status failure_in(const std::string& file, const std::string& text) {
  const auto document = parse_json(text);
  const auto code = unsigned_of(document, "code");
  if (!code || !member_of(document, "message").is_string())
    return Status(Code::requeue, file + " is damaged");
  const auto number = static_cast<unsigned>(std::min<uint64_t>(*code, UINT_MAX));
  return Status(is_code(number) && number != 0 ? static_cast<Code>(number) : Code::internal,
                text_of(document, "message"));
}

/// Returns once the run is prepared. The task that takes the lock prepares it, and the other tasks
/// help to encode its text. Sets `lock` if this task takes it. Errors: the preparation failed in
/// any task, or another run holds the lock.
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

/// Handles the signals of this process. It passes each signal to the agent, so the run saves and
/// ends. But on one of several hosts without srun, SIGINT and SIGTERM end only this node as long as
/// no other command has received one. This node's agent is then killed after kLeaveMs, as if its
/// host were lost, or at once at the second signal. Commands of nodes that the run has lost do not
/// count: they may seem to live.
class Signals {
 public:
  Signals(RunFolder run, std::string instance, const HostPlace* place)
      : run_(std::move(run)), instance_(std::move(instance)), place_(place) {}
  /// node: name of this task's node.
  void pass_to(AgentLauncher& launcher, const std::string& node) {
    if (signals <= passed_) return;
    if (place_ && last_signal != SIGUSR1 && !decided(node)) return;
    passed_ = signals;
    launcher.signal(left_ ? SIGKILL : last_signal);
  }
  /// True if only this node was ended.
  bool left() const { return left_; }

 private:
  bool decided(const std::string& node) {
    const auto now = Clock::now();
    if (now < look_at_) return false;
    look_at_ = now + milliseconds(100);  // polls: a shared file system
    const std::string others = training_nodes();
    if (others.empty()) {
      place_ = nullptr;  // further signals are passed
      return true;
    }
    if (leave_at_ == Clock::time_point()) {
      leave_at_ = now + kLeaveMs;
      terminal::error(
          "simplescale: %s leaves the run in %d s; if the commands of%s are stopped until then, "
          "too, the run saves and ends\n",
          node.c_str(), static_cast<int>(kLeaveMs.count() / 1000), others.c_str());
    }
    left_ = signals > passed_ + 1 || now > leave_at_;
    return left_;
  }

  /// The nodes whose commands were not asked to end, each with a space before it.
  std::string training_nodes() const {
    std::set<std::string> lost;
    for (const slurm::LastKnownNode& node : last_known_nodes(run_, instance_))
      if (node.lost) lost.insert(node.name);
    std::string others;
    for (const int rank : place_->not_leaving())
      if (!lost.contains(node_name(rank))) others += " " + node_name(rank);
    return others;
  }

  static constexpr milliseconds kLeaveMs{5'000};
  const RunFolder run_;
  const std::string instance_;
  const HostPlace* place_;
  int passed_ = 0;
  bool left_ = false;
  Clock::time_point leave_at_{}, look_at_{};
};

/// Prints how the run ended: the task with the view prints the summary, every other task its own
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

Status check_trusted_networks(const Config& config, const slurm::Task& task) {
  const std::string& trusted = config.transport.trusted_networks;
  SS_ASSIGN(const auto networks, parse_trusted_networks(trusted));
  if (task.other_hosts && !trusted_interfaces(networks, local_addresses()).empty())
    SS_RETURN_IF_ERROR(ucx::check_host());
  if (config.cluster.device != DeviceKind::cuda || !nccl_is_allowed(task.other_hosts, trusted))
    return {};
  return nccl_variables(task.other_hosts, trusted, local_addresses()).status();
}

Status check_task_count(RunStart& start, int tasks) {
  const int nodes = start.plan.topology.nodes;
  if (tasks < nodes) {
    const std::string wanted = std::to_string(nodes);
    return Status(Code::bad_config,
                  "the run has " + std::to_string(tasks) + " tasks, but cluster.nodes = " + wanted +
                      ": use srun --ntasks=" + wanted + " --ntasks-per-node=1, or --nnodes=" +
                      wanted + " without srun, or more tasks for spares");
  }
  start.config.cluster.spares = tasks - nodes;
  // The spares decide how many of cluster.max_nodes are to train.
  SS_ASSIGN(start.plan, make_plan(start.config));
  return {};
}

Status check_new_folder(const RunFolder& run, const Config& config) {
  if (fs::exists(run.control())) return {};
  const Status status = check_run_folder(run, config);
  return fs::exists(run.control()) ? Status() : status;
}

bool is_prepared(const RunFolder& run, const std::string& instance) {
  std::error_code ignored;
  return fs::exists(PreparationFiles(run, instance).ready, ignored);
}

bool is_preparation_failed(const RunFolder& run, const std::string& instance) {
  std::error_code ignored;
  return fs::exists(PreparationFiles(run, instance).failed, ignored);
}

Status train_as_task(RunStart start, const slurm::Task& task, bool oversubscribe,
                     const HostPlace* place) {
  SS_RETURN_IF_ERROR(check_task_count(start, task.tasks));
  const Config& config = start.config;
  const Plan& plan = start.plan;
  const RunFolder run{run_folder(config)};
  const int slots = plan.topology.trainers_per_node;
  PreflightInput input;
  input.trainers_on_host = slots * task.tasks_on_host;
  input.writes_checkpoints = task.task == 0;
  input.oversubscribe = oversubscribe;
  input.prepares_data = needs_preparation(config);
  input.staged =
      task.shares_gpus || !nccl_is_allowed(task.other_hosts, config.transport.trusted_networks);
  SS_RETURN_IF_ERROR(check_new_folder(run, config));
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  SS_RETURN_IF_ERROR(check_trusted_networks(config, task));
  SS_RETURN_IF_ERROR(check_device(config));
  if (!start.warning.empty())
    terminal::error("simplescale: warning: %s: %s\n", node_name(task.task).c_str(),
                    start.warning.c_str());
  // A write beyond the limit of file sizes fails with EFBIG instead of killing the process. The
  // agent and its trainers inherit this.
  signal(SIGXFSZ, SIG_IGN);
  const StopsEarly stops({SIGINT, SIGTERM, SIGUSR1});
  std::optional<RunLock> lock;
  SS_RETURN_IF_ERROR(wait_until_prepared(run, start, task.instance, lock));
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  if (place && !lock) SS_RETURN_IF_ERROR(check_same_config(run, config));
  if (const auto end = end_of(run, task.instance)) {  // after this command had joined it
    terminal::error("simplescale: %s: the run has ended: %s\n", node_name(task.task).c_str(),
                    end->reason.c_str());
    std::exit(end->code);
  }

  const int cores = slurm::task_cores(task, usable_cores(),
                                      static_cast<int>(std::thread::hardware_concurrency()));
  SS_ASSIGN(const NameLock name, NameLock::take(run, task.instance, task.task));
  AgentLauncher launcher(run, config, task.instance, threads_per_trainer(config, cores, slots),
                         place ? SIGKILL : SIGTERM);
  SS_RETURN_IF_ERROR(launcher.start(task.task));
  std::unique_ptr<RunView> view;
  auto lock_due = Clock::now();
  Signals passed(run, task.instance, place);
  while (launcher.poll()) {
    passed.pass_to(launcher, node_name(task.task));
    // One task must hold the lock while the run lives: `status` and other starts depend on it.
    if (!lock && Clock::now() >= lock_due) {
      if (auto taken = RunLock::take(run); taken.ok()) lock = taken.take();
      lock_due = Clock::now() + std::chrono::seconds(1);
    }
    if (lock && !view) view = std::make_unique<RunView>(run, config, plan);
    if (view) view->update();
    std::this_thread::sleep_for(milliseconds(20));
  }
  launcher.reap_remaining(config.supervision.shutdown_ms);
  if (passed.left() && launcher.exit_code() < 0) {
    view.reset();
    terminal::error(
        "simplescale: %s has left the run, which goes on without it; the same command "
        "brings it back\n",
        node_name(task.task).c_str());
    std::exit(exit_code(Code::requeue));
  }
  int code = print_end(run, config, task, launcher, view.get());
  std::fflush(nullptr);
  if (code < 0) code = exit_code(Code::requeue);
  act_for_lost_script(run.path, task, code);
  std::exit(code);
}

}  // namespace simplescale
