// Keeps a run's agents on this host: starts them, starts one again that was killed, passes signals
// on, and knows how the run ended. One thread, the caller's.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/process.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

class AgentLauncher {
 public:
  /// Agents of the nodes `nodes` of one start of a run; threads: of a trainer.
  AgentLauncher(RunFolder run, const Config& config, std::string instance, int threads);
  /// Kills what still runs.
  ~AgentLauncher();
  AgentLauncher(const AgentLauncher&) = delete;
  AgentLauncher& operator=(const AgentLauncher&) = delete;

  Status start(int node);
  /// Looks after the agents, without waiting: true while one runs or is about to.
  bool look();
  /// To all agents.
  void signal(int number);
  /// Agents that end now are not started again.
  void expect_end() { stopping_ = true; }
  /// Waits for processes of the run that outlived their agent (supervisors), and kills what is
  /// still there after so long.
  void end_others(int64_t timeout_ms);

  /// How the run ended: its own word, or else what the agents' exit codes say; -1: all were killed.
  int exit_code() const;
  std::string reason() const;
  /// Agents that were killed, in words.
  const std::string& dead() const { return dead_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Agent {
    pid_t pid = 0;  // 0: none now
    int restarts = 0;
    bool due = false;  // to be started again
    Clock::time_point due_at{};
  };
  void ended(Agent& agent, int node, int status);
  bool run_is_over() const;

  const RunFolder run_;
  const Config& config_;
  const std::string instance_;
  const int threads_;
  std::map<int, Agent> agents_;
  std::vector<int> codes_;  // of agents that ended by themselves
  std::string dead_;
  bool stopping_ = false;
};

}  // namespace simplescale
