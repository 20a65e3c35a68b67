#include "runtime/run/agent_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "runtime/base/open_output.hpp"

namespace simplescale {

namespace {
constexpr int kAgentLockTries = 50;
constexpr std::chrono::milliseconds kRetry{20};

std::string path_of(const RunFolder& run) {
  return run.control() + "/agents";
}

/// True if an agent holds the lock. not_found: the file does not exist; io.
Result<bool> held(const RunFolder& run) {
  const std::string path = path_of(run);
  // NFS needs a descriptor for writing; other file systems do not.
  int fd = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno, Code::not_found);
  const int error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  close(fd);
  if (error == 0 || error == EWOULDBLOCK) return error != 0;
  return system_error("cannot lock", path, error);
}
}  // namespace

AgentLock::~AgentLock() {
  if (fd_ >= 0) close(fd_);
}

Result<AgentLock> AgentLock::take(const RunFolder& run, int operation, const char* refused) {
  const std::string path = path_of(run);
  AgentLock lock(open_output(path, Output::lock));
  if (lock.fd_ < 0) return output_error(path, errno, Code::io);
  for (int tries = 1; flock(lock.fd_, operation | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK && errno != EINTR) return system_error("cannot lock", path, errno);
    if (tries == kAgentLockTries) return Status(Code::unavailable, run.path + ": " + refused);
    std::this_thread::sleep_for(kRetry);  // flock has no timeout
  }
  return lock;
}

Result<AgentLock> AgentLock::share(const RunFolder& run) {
  return take(run, LOCK_SH, "another start of the run begins");
}

Result<AgentLock> AgentLock::exclude(const RunFolder& run) {
  return take(run, LOCK_EX, "agents of an earlier start still run");
}

bool agents_live(const RunFolder& run) {
  const auto found = held(run);
  return found.ok() && *found;
}

bool agents_may_live(const RunFolder& run) {
  const auto found = held(run);
  return found.ok() ? *found : found.status().code() != Code::not_found;
}

bool launcher_lives(const RunFolder& run) {
  const int fd = open((run.control() + "/lock").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT && errno != ENOTDIR;  // it may live
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return held;
}

}  // namespace simplescale
