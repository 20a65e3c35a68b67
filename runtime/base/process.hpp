// Starts child processes (without a shell), watches them through pidfds, and reads or sets
// properties of processes. A child ends with its parent unless asked otherwise.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/child_environment.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the program's path
  Variables environment;          // added to what it inherits of this process's
  Inherits inherits = Inherits::all;
  std::string output;  // file to append stdout and stderr to; "": those of this process
  /// Sends death_signal to the child when the thread that called spawn() ends, so that thread must
  /// last as long as the child.
  bool die_with_parent = true;
  int death_signal = 9;         // SIGKILL
  int nice = 0;                 // added to this process's nice value; see set_nice()
  std::vector<int> cpus;        // CPU affinity (cpu_affinity.hpp); empty: that of this process
  bool ignore_signals = false;  // the child starts with SIGINT, SIGTERM and SIGUSR1 ignored
  bool block_signals = false;   // the child starts with these and SIGRTMIN blocked
};

/// Starts a process in a process group of its own and returns its pid. io: the output file cannot
/// be opened, or fork() or exec() failed.
Result<pid_t> spawn(const SpawnOptions& options);

/// State of a process by /proc. gone: it has ended, though it may not be reaped yet.
enum class ProcessState : unsigned char { gone, runs, stopped };
ProcessState process_state(pid_t pid);
/// Boot id and pid namespace of this process. Processes with equal scopes see each other's pids.
const std::string& pid_scope();

/// Calls `set` for every thread of a process, also for threads that start meanwhile; a thread that
/// has ended (ESRCH) is skipped. io: `set` returned non-zero with errno, `call` names the system
/// call; not_found: the process has ended.
Status for_each_thread(pid_t pid, const char* call, const std::function<int(pid_t thread)>& set);
/// Sets the nice value of all threads of a process; threads that they start inherit it. Errors as
/// for_each_thread().
Status set_nice(pid_t pid, int nice);
/// True if this process may lower its nice value again; most users may not.
bool may_lower_nice();

/// How a process ended. text(): "exit code 3" or "killed by signal 9 (Killed)".
struct ExitStatus {
  bool exited = false;  // true: it exited; false: a signal killed it
  int code = 0;         // exit code, or signal number
  bool ok() const { return exited && code == 0; }
  std::string text() const;
};

/// Reports the ends of children. Its thread sleeps on their pidfds and reaps them.
class ProcessWatcher {
 public:
  ProcessWatcher();
  ~ProcessWatcher();
  ProcessWatcher(const ProcessWatcher&) = delete;
  ProcessWatcher& operator=(const ProcessWatcher&) = delete;
  /// Calls `ended` once, on the watcher's thread, after it has reaped the child. io. Any thread.
  Status watch(pid_t child, std::function<void(pid_t, ExitStatus)> ended);
  /// Starts a child on the watcher's thread, so that die_with_parent refers to the watcher, and
  /// watches it. Blocks until it has started. Any thread but the watcher's.
  Result<pid_t> spawn(const SpawnOptions& options, std::function<void(pid_t, ExitStatus)> ended);

 private:
  struct Child {
    pid_t pid;
    std::function<void(pid_t, ExitStatus)> ended;
  };
  void run();
  void post(std::function<void()> job);
  int epoll_ = -1, wake_ = -1;
  std::mutex mutex_;
  bool stopping_ = false;
  std::map<int, Child> children_;  // by pidfd
  std::vector<std::function<void()>> jobs_;
  std::thread thread_;
};

/// Number of CPUs that this process may use: those of its affinity mask (taskset, cgroups, Slurm).
int usable_cores();

/// The value of an environment variable; "" if it is not set.
std::string environment_variable(const std::string& name);
/// The folder of the running program's file.
std::string program_folder();
/// 64 random bits as 16 hex digits.
std::string unique_id();

}  // namespace simplescale
