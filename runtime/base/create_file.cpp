#include "runtime/base/create_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/write_whole.hpp"

namespace simplescale {

namespace {

/// Opens the file that create_file() links to `path`: `room`, or a new file if there is no room. Sets
/// `room` to the name of the opened file.
int open_temporary(const std::string& path, std::string& room) {
  const int fd = room.empty() ? -1 : open(room.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return fd;
  room = path + ".new-" + unique_id();
  return open_output(room, Output::replace, 0600);
}

}  // namespace

Status reserve_room(const std::string& room) {
  const int fd = open_output(room, Output::keep, 0600);
  if (fd < 0) return output_error(room, errno, Code::io);
  size_t done = 0;
  bool good = write_whole(fd, std::string(kRoomBytes, ' '), done);
  good = fsync(fd) == 0 && good;
  const int error = errno;
  ::close(fd);
  if (good) return {};
  unlink(room.c_str());
  return system_error("cannot write", room, error);
}

Result<bool> create_file(const std::string& path, const std::string& contents,
                         const std::string& room) {
  std::string temporary = room;
  const int fd = open_temporary(path, temporary);
  if (fd < 0) return output_error(temporary, errno, Code::io);
  size_t done = 0;
  bool good = write_whole(fd, contents, done);
  good = good && ftruncate(fd, static_cast<off_t>(contents.size())) == 0;
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
  const bool exists = good && error == EEXIST;
  if (ours || exists || temporary != room) unlink(temporary.c_str());  // else the next try needs it
  if (ours) return true;
  if (exists) return false;
  return system_error("cannot create", path, error);
}

}  // namespace simplescale
