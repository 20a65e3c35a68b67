#include "runtime/run/name_lock.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "runtime/base/open_output.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

namespace {
constexpr int kNameTries = 50;
constexpr std::chrono::milliseconds kNameRetry{20};
}  // namespace

NameLock::~NameLock() {
  if (fd_ >= 0) close(fd_);
}

Result<NameLock> NameLock::attempt(const RunFolder& run, const std::string& instance, int node) {
  const std::string path = run.control() + "/name-" + instance + "-" + node_name(node);
  NameLock lock(node, open_output(path, Output::lock));
  if (lock.fd_ < 0) return output_error(path, errno, Code::io);
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK && errno != EINTR) return system_error("cannot lock", path, errno);
  return Status(Code::unavailable, "another command of " + run.path + " runs " + node_name(node) +
                                       " (it holds " + path + "): end it, or, if its host is " +
                                       "lost, remove that file");
}

Result<NameLock> NameLock::take(const RunFolder& run, const std::string& instance, int node) {
  for (int tries = 1;; ++tries) {
    auto lock = attempt(run, instance, node);
    if (lock.status().code() != Code::unavailable || tries == kNameTries) return lock;
    std::this_thread::sleep_for(kNameRetry);  // flock has no timeout
  }
}

Result<NameLock> NameLock::take_free(const RunFolder& run, const std::string& instance, int begin,
                                     int nodes_max) {
  for (int i = 0; i < nodes_max; ++i) {
    auto lock = attempt(run, instance, (begin + i) % nodes_max);
    if (lock.status().code() != Code::unavailable) return lock;
  }
  return Status(Code::unavailable, "all " + std::to_string(nodes_max) + " nodes of " + run.path +
                                       " have living commands");
}

}  // namespace simplescale
