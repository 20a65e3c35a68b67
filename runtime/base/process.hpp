// Child processes: started without a shell, watched through a pidfd, never left behind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

struct SpawnOptions {
  std::vector<std::string> argv;                                 // argv[0] is the program's path
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours
  std::string output;           // file that stdout and stderr are appended to; "" keeps ours
  bool die_with_parent = true;  // a signal when the thread that called spawn() ends, so call it
                                // from a lasting one
  int death_signal = 9;         // which: SIGKILL
  int nice = 0;                 // added to ours; see set_nice()
  std::vector<int> cpus;        // on which it runs; empty: ours. See cpu_affinity.hpp
  bool ignore_signals = false;  // to SIGINT, SIGTERM and SIGUSR1, from its first moment on
  bool block_signals = false;   // these three stay pending until the program asks for them
};

/// Starts the process; an exec that fails is an error here.
Result<pid_t> spawn(const SpawnOptions& options);

/// What the operating system says of a process. gone: also one that has ended and is not reaped.
enum class ProcessState : unsigned char { gone, runs, stopped };
ProcessState process_state(pid_t pid);
/// Pid namespace and boot of this process: two processes with equal scopes see each other's pids.
const std::string& pid_scope();

/// Calls `set` for every thread of a process, also for those that start meanwhile. io: `set` said
/// -1 and errno, `call` names it; not_found: there is no such process. A thread that ends is passed
/// over.
Status for_each_thread(pid_t pid, const char* call, const std::function<int(pid_t thread)>& set);
/// The nice value of all threads of a process; those they start later have it, too.
Status set_nice(pid_t pid, int nice);
/// Whether this user may take back a higher nice value; most may not.
bool may_lower_nice();

/// How a process ended: "exit code 3", "killed by signal 9 (Killed)".
struct ExitStatus {
  bool exited = false;  // by itself; else by a signal
  int code = 0;         // exit code or signal number
  bool ok() const { return exited && code == 0; }
  std::string text() const;
};

/// Tells when children end. One thread sleeps on their pidfds and reaps them.
class ProcessWatcher {
 public:
  ProcessWatcher();
  ~ProcessWatcher();
  ProcessWatcher(const ProcessWatcher&) = delete;
  ProcessWatcher& operator=(const ProcessWatcher&) = delete;
  /// ended is called once, on the watcher's thread, after the child has been reaped.
  Status watch(pid_t child, std::function<void(pid_t, ExitStatus)> ended);
  /// Starts and watches in one call, on the watcher's thread's account (die_with_parent then means:
  /// with the watcher).
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

/// CPUs that this process may use: those of its mask (taskset, cgroups, Slurm).
int usable_cores();

/// Of this process; "" if there is none.
std::string environment_variable(const std::string& name);
/// The folder of the running program.
std::string program_folder();
/// Text that no other run, process or time has: host boot, pid, clock; hex.
std::string unique_id();

}  // namespace simplescale
