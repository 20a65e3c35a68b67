// Starts a run's agents on this host, restarts an agent that is killed, passes signals on, and
// knows how the run ended. Used from one thread.
//
// app/launch is what `train`, `submit`, `sweep` and the Slurm task share: the run's folder and
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
  /// instance: id of this start of the run. threads: CPU threads per trainer. death_signal: what
  /// agents get if this process dies. At SIGTERM the run saves and ends.
  AgentLauncher(RunFolder run, const Config& config, std::string instance, int threads,
                int death_signal = SIGTERM);
  /// Kills the agents that still run.
  ~AgentLauncher();
  AgentLauncher(const AgentLauncher&) = delete;
  AgentLauncher& operator=(const AgentLauncher&) = delete;

  /// Starts the agent of a node.
  Status start(int node);
  /// Reaps agents that have ended and restarts killed ones. Does not block. True while an agent
  /// runs or is about to be restarted.
  bool poll();
  /// Sends a signal to all agents: SIGKILL itself, any other one as the value of SIGRTMIN, which
  /// Linux merges with no pending signal of another process. SIGINT, SIGTERM and SIGKILL also end
  /// the restarting.
  void signal(int number);
  /// Agents that end from now on are not restarted.
  void stop_restarting() { stopping_ = true; }
  /// Waits for supervisors, which outlive their agents, and kills those that still run after
  /// timeout_ms, or at once if the run is not over.
  void reap_remaining(int64_t timeout_ms);

  /// The exit code in control/end.json if this start of the run wrote one; otherwise the highest
  /// exit code of an agent; -1: all agents were killed.
  int exit_code() const;
  /// The reason in control/end.json; otherwise the last line in the log of the last agent that
  /// failed, which ended before the run's processes can write a reason; "" without one.
  std::string reason() const;
  /// For messages: " n1 was killed by signal 9;" for every killed agent, with the last line in the
  /// log of one that ended itself (SIGABRT).
  const std::string& killed_agents() const { return killed_agents_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Agent {
    pid_t pid = 0;  // 0: it does not run
    int restarts = 0;
    bool due = false;  // to be restarted at due_at
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
