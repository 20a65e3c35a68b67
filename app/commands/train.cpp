// `train`: checks the configuration and this host, creates or resumes the run's folder, starts one
// node agent per node on this machine, and prints the progress. If the run trains already, it only
// shows its progress (app/launch/attach.hpp). As a task of srun, or as one of several hosts, it runs
// a single agent instead (app/hosts/task.cpp).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/commands/run_status.hpp"
#include "app/hosts/hosts.hpp"
#include "app/hosts/task.hpp"
#include "app/launch/agent_launcher.hpp"
#include "app/launch/attach.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/bucket_start.hpp"
#include "app/launch/run_start.hpp"
#include "app/launch/run_view.hpp"
#include "app/launch/stops_early.hpp"
#include "app/processes/agent.hpp"
#include "app/processes/supervisor_process.hpp"
#include "app/terminal.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/config/secrets.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/name_lock.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/term.hpp"
#include "transport/gpu/nccl_network.hpp"

namespace simplescale {

namespace {

// A launcher that continues without its terminal, because of `--detach` or because the terminal is
// gone.

/// The background part of `train --detach`. Only with one thread.
class Background {
 public:
  /// Forks this process. The child gets a session of its own, and logs/train.log instead of its
  /// terminal. io.
  static Result<Background> start(const RunFolder& run);
  Background(Background&& other) noexcept;
  Background& operator=(Background&&) = delete;
  ~Background();
  /// True in the process that the user has started, which only waits and ends.
  bool is_parent() const { return child_ > 0; }
  /// In the parent: waits until the child has called started(). internal: it ended before that.
  Status wait(const RunFolder& run);
  /// In the child: the run has started.
  void started();

 private:
  Background(pid_t child, int pipe) : child_(child), pipe_(pipe) {}
  pid_t child_ = 0;
  int pipe_ = -1;  // the child writes a byte into it when the run has started
};

std::string log_of(const RunFolder& run) {
  return run.logs() + "/train.log";
}

bool is_file(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

/// Replaces stdin by /dev/null, and stdout and stderr by logs/train.log. keep_files: keeps those
/// that are files, because only a terminal, or the reader of a pipe, can disappear.
void leave_terminal(const RunFolder& run, bool keep_files) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log = open_output(log_of(run), Output::append);
  if (null >= 0) dup2(null, STDIN_FILENO);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    if (!(keep_files && is_file(output)) && null >= 0) dup2(log >= 0 ? log : null, output);
  if (null >= 0) close(null);
  if (log >= 0) close(log);
  init_logging("simplescale");  // without colours
}

Result<Background> Background::start(const RunFolder& run) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot create", "a pipe", errno);
  std::fflush(nullptr);  // or both processes would print what is buffered
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return system_error("cannot fork", "a process for the background", error);
  }
  close(ends[child > 0 ? 1 : 0]);
  if (child > 0) return Background(child, ends[0]);
  setsid();
  leave_terminal(run, false);
  return Background(0, ends[1]);
}

Background::Background(Background&& other) noexcept : child_(other.child_), pipe_(other.pipe_) {
  other.pipe_ = -1;
}

Background::~Background() {
  if (pipe_ >= 0) close(pipe_);
}

Status Background::wait(const RunFolder& run) {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(pipe_, &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got == 1) return {};
  int ended = 0;
  waitpid(child_, &ended, 0);
  return Status(Code::internal,
                "the run could not be started in the background; the reason is in " + log_of(run));
}

void Background::started() {
  const char byte = 1;
  (void)!write(pipe_, &byte, 1);
  close(pipe_);
  pipe_ = -1;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// Number of nodes with an agent, spares included.
int agent_count(const Config& config) {
  return static_cast<int>(config.cluster.nodes + config.cluster.spares);
}

/// Everything before the first process starts: checks, data, the run's folder. Returns the run's
/// lock.
Result<RunLock> prepare_run(const RunStart& start, int trainers_on_host, bool oversubscribe) {
  const Config& config = start.config;
  const Plan& plan = start.plan;
  const RunFolder run{run_folder(config)};
  SS_RETURN_IF_ERROR(check_run_folder(run, config));  // before anything is written
  SS_RETURN_IF_ERROR(check_device(config));
  PreflightInput input;
  input.trainers_on_host = trainers_on_host;
  input.oversubscribe = oversubscribe;
  input.prepares_data = needs_preparation(config);
  input.staged = may_grow(config) && !nccl_is_allowed(true, config.transport.trusted_networks);
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  for (const std::string& warning : {crowd_warning(config, input), start.warning})
    if (!warning.empty()) terminal::error("simplescale: warning: %s\n", warning.c_str());
  SS_ASSIGN(const RunData data, prepare_and_check_data(config, plan));
  SS_ASSIGN(RunLock lock, lock_run(run));
  SS_RETURN_IF_ERROR(open_run_folder(run, config, plan, data, start.rate_said));
  return lock;
}

volatile sig_atomic_t stops = 0, last_stop = 0, hung_up = 0;
void on_stop(int signal) {
  // Schedulers repeat SIGTERM before the run has saved. Only Ctrl-C means: at once (JOB-1).
  if (signal == SIGTERM && stops > 0) return;
  last_stop = signal;
  stops = stops + 1;
}
void on_hangup(int) {
  hung_up = 1;
}

/// SIGHUP does not end the run: the launcher goes on without its terminal. After `nohup` SIGHUP
/// stays ignored.
void handle_signals() {
  struct sigaction action {
  }, before{};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;  // a line that is being printed is not lost
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // `train | head`: the run goes on without its reader
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  action.sa_handler = on_hangup;
  sigaction(SIGHUP, &action, nullptr);
}

/// Passes a signal of the user on to the agents. The second one means: at once; the third: kill.
void pass_signals(AgentLauncher& launcher, RunView& view, int& passed) {
  if (stops <= passed) return;
  ++passed;
  view.print_line(passed == 1
                      ? "stopping after this step and saving; press Ctrl-C again to stop at once"
                      : "stopping at once");
  launcher.signal(passed > 2 ? SIGKILL : passed > 1 ? SIGINT : last_stop);
}

/// Starts the agents, passes signals on, prints progress, and waits for the end of all processes.
/// background: the part of this process that a user waits for; null without --detach.
Status launch(const Config& config, const Plan& plan, Background* background) {
  const RunFolder run{run_folder(config)};
  const std::string instance = unique_id();
  handle_signals();
  RunView view(run, config, plan);
  SS_RETURN_IF_ERROR(TermFiles(run, instance).begin());
  const int cores = usable_cores();
  AgentLauncher launcher(run, config, instance,
                         threads_per_trainer(config, cores, plan.topology.world()));
  auto gone = std::make_shared<std::atomic<bool>>(false);
  const FolderWatch folder_watch(
      run, [gone] { *gone = true; }, std::chrono::seconds(1),
      FolderWatch::looks_of_agent(config.cluster.join_timeout_ms));
  std::optional<std::chrono::steady_clock::time_point> gone_at;
  std::vector<NameLock> names;
  for (int node = 0; node < agent_count(config); ++node) {
    SS_ASSIGN(NameLock name, NameLock::take(run, instance, node));
    names.push_back(std::move(name));
    SS_RETURN_IF_ERROR(launcher.start(node));
  }
  if (background) background->started();
  const std::chrono::milliseconds shutdown(config.supervision.shutdown_ms);
  for (int passed = 0; launcher.poll();) {
    if (hung_up == 1) {
      hung_up = 2;  // done
      leave_terminal(run, true);
      view.print_line("the terminal is gone (SIGHUP); the run trains on in the background");
    }
    pass_signals(launcher, view, passed);
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
  if (folder_is_gone(run))
    return Status(Code::io, run_gone_message(run) + "; all its processes have ended");
  const Status end = view.finish(launcher.exit_code(), launcher.killed_agents(), launcher.reason());
  const Status uploaded = finish_upload(run, config, [before = stops] { return stops > before; });
  if (end.ok()) return uploaded;
  if (!uploaded.ok()) terminal::error("simplescale: %s\n", uploaded.message().c_str());
  return end;
}

/// Runs all nodes on this machine, or attaches to the run if it trains already. detach: returns
/// once the run has started, which goes on in the background.
Status train_here(const RunStart& start, bool oversubscribe, bool detach) {
  const Config& config = start.config;
  const RunFolder run{run_folder(config)};
  const int trainers = agent_count(config) * start.plan.topology.trainers_per_node;
  while (true) {
    // Before the checks of this host: they would complain about the memory, and the HTTP port, that
    // the processes of this run use.
    if (can_attach(run)) {
      if (const auto end = attach(start, detach)) return *end;
      SS_ASSIGN(const bool finished, already_finished(run, config, start.plan));
      if (finished) return finish_upload(run, config, nullptr);
    }
    auto lock = [&] {
      const StopsEarly stops({SIGTERM});
      return prepare_run(start, trainers, oversubscribe);
    }();
    if (!lock.ok() && can_attach(run)) continue;  // another `train` was faster
    if (!lock.ok()) return lock.status();
    if (!detach) return launch(config, start.plan, nullptr);
    SS_ASSIGN(Background background, Background::start(run));
    if (!background.is_parent()) return launch(config, start.plan, &background);
    SS_RETURN_IF_ERROR(background.wait(run));
    print_hints(run, "trains in the background");
    return {};
  }
}

}  // namespace

Status train_command(const std::string& config_file, Overrides overrides, const std::string& run,
                     bool oversubscribe, bool detach, const HostRank& rank) {
  if (const Status fits = check_rank(rank); !fits.ok())
    return Status(fits.code(), fits.message() +
                                   "; a further host joins the run while it trains by: train "
                                   "--join RUN");
  for (const std::string& text : take_secret_overrides()) overrides.push_back(text);
  SS_ASSIGN(RunStart start, resolve_run_start(config_file, std::move(overrides), run));
  SS_RETURN_IF_ERROR(refuse_sweep(config_file, start.config));
  const bool hosts = rank.nnodes > 1;
  const auto task = slurm_task();
  if (detach && (task || hosts))
    return Status(Code::usage,
                  "--detach: a task of srun cannot go to the background; use `submit`. On one of "
                  "several hosts, use nohup or systemd");
  if (hosts) return train_on_hosts(std::move(start), rank, oversubscribe);
  SS_ASSIGN(const bool finished,
            already_finished({run_folder(start.config)}, start.config, start.plan));
  if (finished) return finish_upload({run_folder(start.config)}, start.config, nullptr);
  if (task) return train_as_task(std::move(start), *task, oversubscribe);
  if (std::getenv("SLURM_JOB_ID"))
    terminal::error(
        "simplescale: not started by srun, so all nodes run on this host; to use the whole "
        "allocation, run: srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 simplescale "
        "train ...\n");
  return train_here(start, oversubscribe, detach);
}

Status resume_command(const std::string& run, Overrides overrides, bool oversubscribe, bool detach,
                      const HostRank& rank) {
  SS_RETURN_IF_ERROR(check_is_run(run));
  // Earlier versions let a run carry the [sweep] of its file, which has no meaning in it.
  overrides.insert(overrides.end(), {"--sweep.keys={}", "--sweep.seeds=[]"});
  return train_command(RunFolder{run}.config(), std::move(overrides), run, oversubscribe, detach,
                       rank);
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
