#include "app/launch/agent_launcher.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "app/launch/last_line.hpp"
#include "runtime/base/log.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale {

namespace {
constexpr auto kRestartAfter = std::chrono::seconds(1);
}  // namespace

AgentLauncher::AgentLauncher(RunFolder run, const Config& config, std::string instance, int threads,
                             int death_signal)
    : run_(std::move(run)),
      config_(config),
      instance_(std::move(instance)),
      threads_(threads),
      death_signal_(death_signal) {
  // A supervisor whose agent is killed becomes a child of this process, which reaps it at the end.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

AgentLauncher::~AgentLauncher() {
  for (auto& [node, agent] : agents_)
    if (agent.pid > 0) kill(agent.pid, SIGKILL);
}

Status AgentLauncher::start(int node) {
  SpawnOptions command;
  command.argv = {program_folder() + "/simplescale",
                  "agent",
                  "--run",
                  run_.path,
                  "--node",
                  std::to_string(node)};
  command.environment = {{"SIMPLESCALE_INSTANCE", instance_},
                         {"SIMPLESCALE_THREADS", std::to_string(threads_)}};
  command.inherits = agents_inherit(config_);
  command.output = log_of(node);
  command.death_signal = death_signal_;
  command.block_signals = true;  // blocked until the agent handles them
  SS_ASSIGN(const pid_t pid, spawn(command));
  agents_[node].pid = pid;
  return {};
}

void AgentLauncher::on_exit(Agent& agent, int node, int status) {
  agent.pid = 0;
  if (WIFEXITED(status)) {
    if (WEXITSTATUS(status) != 0) failed_log_ = log_of(node);
    codes_.push_back(WEXITSTATUS(status));
    return;
  }
  std::string what =
      " " + node_name(node) + " was killed by signal " + std::to_string(WTERMSIG(status));
  if (WTERMSIG(status) == SIGABRT) what += " (" + last_line(log_of(node)) + ")";
  what += ";";
  if (killed_agents_.find(what) == std::string::npos) killed_agents_ += what;
  if (!stopping_ && !run_is_over()) restart_later(agent);
}

void AgentLauncher::restart_later(Agent& agent) {
  if (agent.restarts >= config_.supervision.max_restarts) return;
  ++agent.restarts;
  agent.due = true;
  agent.due_at = Clock::now() + kRestartAfter;
}

bool AgentLauncher::poll() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (auto& [node, agent] : agents_)
      if (agent.pid == pid) on_exit(agent, node, status);
  bool any = false;
  for (auto& [node, agent] : agents_) {
    if (agent.due && (stopping_ || run_is_over())) agent.due = false;
    if (agent.due && Clock::now() >= agent.due_at) {
      agent.due = false;
      if (Status started = start(node); !started.ok()) {
        log::error("cannot restart n{}: {}", node, started.message());
        restart_later(agent);
      }
    }
    any = any || agent.pid > 0 || agent.due;
  }
  return any;
}

void AgentLauncher::signal(int number) {
  if (number == SIGKILL || number == SIGINT || number == SIGTERM) stopping_ = true;
  for (const auto& [node, agent] : agents_)
    if (agent.pid > 0 && number == SIGKILL)
      kill(agent.pid, SIGKILL);
    else if (agent.pid > 0)
      sigqueue(agent.pid, SIGRTMIN, {.sival_int = number});
}

void AgentLauncher::reap_remaining(int64_t timeout_ms) {
  // A supervisor ends by itself only when the run is over; before that it waits for agents.
  const auto deadline = Clock::now() + std::chrono::milliseconds(run_is_over() ? timeout_ms : 0);
  while (true) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0) return;  // no child is left
    if (ended > 0) continue;
    if (Clock::now() >= deadline) {
      const std::string self = std::to_string(getpid());
      std::ifstream children("/proc/" + self + "/task/" + self + "/children");
      for (pid_t pid; children >> pid;) kill(pid, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // waitpid has no timeout
  }
}

int AgentLauncher::exit_code() const {
  if (const auto end = end_of(run_, instance_)) return end->code;
  return codes_.empty() ? -1 : *std::max_element(codes_.begin(), codes_.end());
}

std::string AgentLauncher::reason() const {
  const auto end = end_of(run_, instance_);
  if (end) return end->reason;
  return failed_log_.empty() ? "" : last_line(failed_log_);
}

}  // namespace simplescale
