// Starts a run's agents on this host, restarts an agent that is killed, passes signals to agents,
// and finds out how the run ended. Used from one thread.
//
// app/launch is shared by `train`, `submit`, `sweep` and the Slurm task: the run's folder and
// configuration, data preparation, starting agents, and the progress on the terminal.
#pragma once

#include <signal.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/process.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

class AgentLauncher {
 public:
  /// instance: id of this start of the run. threads: CPU threads per trainer. death_signal: the
  /// signal that agents get if this process dies. At SIGTERM the run saves and ends.
  AgentLauncher(RunFolder run, const Config& config, std::string instance, int threads,
                int death_signal = SIGTERM);
  /// Kills the agents that are still running.
  ~AgentLauncher();
  AgentLauncher(const AgentLauncher&) = delete;
  AgentLauncher& operator=(const AgentLauncher&) = delete;

  /// Starts the agent of a node.
  Status start(int node);
  /// Reaps ended agents and restarts killed ones. Does not block. True while an agent runs or is
  /// about to be restarted.
  bool poll();
  /// Sends a signal to all agents. Sends SIGKILL itself, and any other signal as the value of
  /// SIGRTMIN: Linux does not merge that with a pending signal of another process. After SIGINT,
  /// SIGTERM and SIGKILL, agents are not restarted.
  void signal(int number);
  /// From now on, agents that end are not restarted.
  void stop_restarting() { stopping_ = true; }
  /// Waits for supervisors, which outlive their agents. Kills those that still run after
  /// timeout_ms, or at once if the run is not over.
  void reap_remaining(int64_t timeout_ms);

  /// The exit code in control/end.json if this start of the run wrote one; otherwise the highest
  /// exit code of an agent; -1: all agents were killed.
  int exit_code() const;
  /// The reason in control/end.json; otherwise the last line in the log of the last agent that
  /// failed: an agent may end before the run's processes can write a reason. "" if there is
  /// neither.
  std::string reason() const;
  /// For messages: " n1 was killed by signal 9;" for every killed agent, with the last line in the
  /// log of one that ended itself (SIGABRT).
  const std::string& killed_agents() const { return killed_agents_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Agent {
    pid_t pid = 0;  // 0: the agent does not run
    int restarts = 0;
    bool due = false;  // the agent is to be restarted at due_at
    Clock::time_point due_at{};
  };
  std::string log_of(int node) const { return run_.logs() + "/" + node_name(node) + ".log"; }
  void on_exit(Agent& agent, int node, int status);
  void restart_later(Agent& agent);
  bool run_is_over() const { return end_of(run_, instance_).has_value(); }

  const RunFolder run_;
  const Config& config_;
  const std::string instance_;
  const int threads_, death_signal_;
  std::map<int, Agent> agents_;
  std::vector<int> codes_;  // exit codes of agents that were not killed
  std::string killed_agents_, failed_log_;
  bool stopping_ = false;
};

}  // namespace simplescale
