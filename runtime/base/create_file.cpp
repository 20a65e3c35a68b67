#include "runtime/base/create_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "runtime/base/write_whole.hpp"

namespace simplescale {

Result<bool> create_file(const std::string& path, const std::string& contents) {
  std::string temporary = path + ".new-XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return system_error("cannot write", temporary, errno);
  size_t done = 0;
  bool good = write_whole(fd, contents, done);
  good = fsync(fd) == 0 && good;
  ::close(fd);
  // link() is exclusive on file systems where O_EXCL is not, and a reader never sees a partial
  // file.
  const int linked = good ? link(temporary.c_str(), path.c_str()) : -1;
  const int error = errno;
  struct stat status {};
  // NFS may report an error though it made the link: then the file has two names.
  const bool ours =
      linked == 0 || (good && stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2);
  unlink(temporary.c_str());
  if (ours) return true;
  if (good && error == EEXIST) return false;
  return system_error("cannot create", path, error);
}

}  // namespace simplescale
