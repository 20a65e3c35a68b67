#include "tools/prepare/file_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/open_output.hpp"

namespace simplescale {

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<bool> FileLock::try_take(const std::string& path) {
  if (fd_ < 0) fd_ = open_output(path, Output::lock, 0666);
  if (fd_ < 0 && errno == EACCES) {  // another user's: a local file system locks it all the same
    fd_ = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) return true;
  }
  if (fd_ < 0 && (errno == EACCES || errno == EROFS)) return true;
  if (fd_ < 0) return output_error(path, errno, Code::io);
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return errno != EWOULDBLOCK;
  return true;
}

}  // namespace simplescale
