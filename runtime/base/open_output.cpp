#include "runtime/base/open_output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/base/own_links.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

constexpr int kOpenTries = 10;  // a name that is taken again and again

/// The folder is held open: its name may mean another one by now.
Descriptor open_folder(const fs::path& named) {
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  const fs::path folder = named.empty() ? fs::path(".") : named;
  Descriptor held(::open(folder.c_str(), kFlags));
  const fs::path name = folder.filename();
  if (held.fd < 0 || name.empty() || name == "." || name == "..") return held;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  const Descriptor above(::open(parent.c_str(), kFlags));
  if (above.fd < 0) return Descriptor(-1);
  errno = ELOOP;  // unless a call fails
  return by_own_links(above.fd, name, held.fd) ? std::move(held) : Descriptor(-1);
}

/// Of another user, who could read or change what is written to the file; or a pipe, a device.
bool is_own_file(int fd, bool of_anybody) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         (of_anybody || info.st_uid == ::geteuid() || info.st_uid == 0);
}

int open_there(int folder, const char* name, Output how, mode_t mode) {
  // O_NONBLOCK: opening a pipe without a reader would block. It has no effect on files.
  const int flags = O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC |
                    (how == Output::append ? O_WRONLY | O_APPEND : O_RDWR);
  const int fd = ::openat(folder, name, flags, mode);
  if (fd < 0 || is_own_file(fd, how == Output::lock)) return fd;
  ::close(fd);
  errno = EPERM;
  return -1;
}

int open_new(int folder, const char* name, mode_t mode) {
  for (int tries = 0; tries < kOpenTries; ++tries) {
    struct stat info {};
    const bool found = ::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (found && (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))) {
      errno = EPERM;
      return -1;
    }
    if (::unlinkat(folder, name, 0) != 0 && errno != ENOENT) return -1;
    const int fd = ::openat(folder, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace

int open_output(const std::string& path, Output how, mode_t mode) {
  const fs::path file(path);
  if (!file.has_filename()) {
    errno = EISDIR;
    return -1;
  }
  if (file.parent_path() == "/dev") {  // what is there, also its links, is of the whole host
    errno = EPERM;
    return -1;
  }
  const Descriptor folder = open_folder(file.parent_path());
  if (folder.fd < 0) return -1;
  const std::string name = file.filename();
  return how == Output::replace ? open_new(folder.fd, name.c_str(), mode)
                                : open_there(folder.fd, name.c_str(), how, mode);
}

Status output_error(const std::string& path, int error, Code missing) {
  if (error == ELOOP)
    return Status(Code::io, "cannot write " + path +
                                ": a link is in the way, of this name or of another user; remove "
                                "it, or choose another folder");
  return system_error("cannot write", path, error, missing);
}

void OutputStream::open(const std::string& path, Output how) {
  path_ = path;
  const Descriptor file(open_output(path, how));
  error_ = file.fd < 0 ? errno : 0;
  if (file.fd < 0) return setstate(std::ios::failbit);
  // std::ios::in: nothing is cut off.
  std::ofstream::open("/proc/self/fd/" + std::to_string(file.fd),
                      std::ios::binary | std::ios::in | std::ios::out | std::ios::ate);
}

Status OutputStream::status() const {
  return good() ? Status() : output_error(path_, error_ != 0 ? error_ : errno, Code::io);
}

}  // namespace simplescale
