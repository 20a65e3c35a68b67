#include "runtime/run/run_key.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/log.hpp"

namespace simplescale {

Status make_run_key(const RunFolder& run) {
  char key[kRunKeyBytes];
  if (getrandom(key, sizeof key, 0) != static_cast<ssize_t>(sizeof key))
    return system_error("cannot make", run.key(), errno);
  const std::string temporary = run.key() + ".part";
  unlink(temporary.c_str());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("cannot write", temporary, errno);
  const ssize_t written = write(fd, key, sizeof key);
  const int error = errno;
  close(fd);
  if (written != static_cast<ssize_t>(sizeof key))
    return system_error("cannot write", temporary, written < 0 ? error : ENOSPC);
  return publish_file(temporary, run.key());
}

Result<std::string> read_run_key(const RunFolder& run) {
  const int fd = open(run.key().c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return Status(Code::io, "cannot read the run's key " + run.key() + ": " + std::strerror(errno) +
                                (errno == EACCES ? "; only its owner may connect to the run" : ""));
  std::string key(kRunKeyBytes + 1, '\0');
  struct stat file {};
  const bool seen = fstat(fd, &file) == 0;
  const ssize_t got = read(fd, key.data(), key.size());
  close(fd);
  if (got != static_cast<ssize_t>(kRunKeyBytes))
    return Status(Code::bad_data, run.key() + " is not a run's key: start `train` again");
  if (seen && (file.st_mode & 077) != 0)
    log::warn("{} is readable by other users, who can therefore control this run: chmod 600 it",
              run.key());
  key.resize(kRunKeyBytes);
  return key;
}

}  // namespace simplescale
