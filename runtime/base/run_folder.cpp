#include "runtime/base/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

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
  lock.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock.fd_ < 0)
    return Status(Code::bad_config, "cannot write " + path + ": " + std::strerror(errno));
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0)
    return Status(Code::bad_config,
                  "another process trains in " + folder.path +
                      "; stop it, or give this run a folder of its own with --run=FOLDER");
  return lock;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(Code::not_found, "cannot read " + path + ": " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Status write_text_atomic(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    if (!(file << text << std::flush))
      return Status(Code::io, "cannot write " + temporary + ": " + std::strerror(errno));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return Status(Code::io, "cannot write " + path + ": " + error.message());
  return {};
}

}  // namespace simplescale
