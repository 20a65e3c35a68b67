// Finds out which processes of a run live, by the locks that they hold on files of the run's
// folder. If a process dies, the kernel, or the server of a shared file system, releases its lock.
//
//   control/lock    held by the launcher (RunLock): it starts agents
//   control/agents  shared by all agents: they hold the newest steps in memory
//
//   LOCK-1  A start of a run begins (TermFiles::begin()) only while no agent of an earlier start
//           lives. So the agents of a launcher that died can save their steps before another start
//           deposes their supervisor.
#pragma once

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// A lock on control/agents, until destroyed. Any thread.
class AgentLock {
 public:
  AgentLock(AgentLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  AgentLock& operator=(AgentLock&&) = delete;
  ~AgentLock();
  /// The lock of one agent; any number of agents can share it. Blocks at most one second, because
  /// begin() and probes hold the file for a moment. unavailable: the file is held longer; io.
  static Result<AgentLock> share(const RunFolder& run);
  /// The lock of a start that begins; no agent can hold it then. Blocks at most one second, because
  /// probes hold the file for a moment. unavailable: an agent lives; io.
  static Result<AgentLock> exclude(const RunFolder& run);

 private:
  explicit AgentLock(int fd) : fd_(fd) {}
  static Result<AgentLock> take(const RunFolder& run, int operation, const char* refused);
  int fd_ = -1;
};

/// True if an agent of the run lives. False also if this process cannot find out: on NFS only the
/// folder's owner can. Writes nothing.
bool agents_live(const RunFolder& run);
/// False if no agent of the run lives, or if the run's folder is gone. True also while the folder
/// fails, because then this cannot be found out. Writes nothing.
bool agents_may_live(const RunFolder& run);
/// True if the launcher of the run lives, or if that cannot be found out. Writes nothing.
bool launcher_lives(const RunFolder& run);

}  // namespace simplescale
