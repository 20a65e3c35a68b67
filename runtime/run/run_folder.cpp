#include "runtime/run/run_folder.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/open_output.hpp"
#include "runtime/base/path_error.hpp"
#include "runtime/run/agent_lock.hpp"

namespace simplescale {

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

Result<RunLock> RunLock::take(const RunFolder& folder) {
  const std::string path = folder.control() + "/lock";
  RunLock lock;
  lock.fd_ = open_output(path, Output::lock);
  if (lock.fd_ < 0)
    return Status(path_error(errno, Code::bad_config),
                  "cannot write " + path + ": " + std::strerror(errno));
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0)
    return Status(Code::bad_config,
                  "another process trains in " + folder.path +
                      "; stop it, or give this run a folder of its own with --run=FOLDER");
  return lock;
}

bool RunLock::held(const RunFolder& folder) {
  return launcher_lives(folder) || agents_live(folder);
}

}  // namespace simplescale
