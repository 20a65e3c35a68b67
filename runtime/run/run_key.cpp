#include "runtime/run/run_key.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/log.hpp"
#include "runtime/base/path_error.hpp"

namespace simplescale {

namespace {

Status check_own(const std::string& path, const struct stat& file) {
  if (file.st_uid != geteuid())
    return Status(Code::bad_data, path + " belongs to another user (uid " +
                                      std::to_string(file.st_uid) + "), who could control this " +
                                      "command by it: call it as that user");
  if ((file.st_mode & 022) != 0)
    return Status(Code::bad_data,
                  path + " can be written by other users, so it is not trusted: remove it");
  return {};
}

/// A user who may replace what is in the folder could replace control/.
Status check_folder(const std::string& path) {
  struct stat folder {};
  if (stat(path.c_str(), &folder) != 0) return system_error("cannot read", path, errno);
  if (folder.st_uid != geteuid() && folder.st_uid != 0)
    return Status(Code::bad_config, path + " belongs to another user (uid " +
                                        std::to_string(folder.st_uid) +
                                        "): choose another folder with --run=FOLDER");
  if ((folder.st_mode & S_IWOTH) != 0)
    return Status(Code::bad_config, path + " can be written by other users: chmod o-w " + path);
  return {};
}

}  // namespace

Status check_own(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return system_error("cannot read", path, errno);
  if (S_ISLNK(file.st_mode)) return Status(Code::bad_data, path + " is a link: remove it");
  return check_own(path, file);
}

Status make_control(const RunFolder& run) {
  const std::string path = run.control();
  std::filesystem::path parent = std::filesystem::absolute(run.path).lexically_normal();
  if (!parent.has_filename()) parent = parent.parent_path();  // RUN ends with "/"
  parent = parent.parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error)
    return Status(path_error(error.value(), Code::bad_config),
                  "cannot create " + run.path + ": " + error.message());
  if (mkdir(run.path.c_str(), 0775) != 0 && errno != EEXIST)
    return Status(path_error(errno, Code::bad_config),
                  "cannot create " + run.path + ": " + std::strerror(errno));
  SS_RETURN_IF_ERROR(check_folder(run.path));
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Status(path_error(errno, Code::bad_config),
                  "cannot create " + path + ": " + std::strerror(errno));
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return Status(Code::bad_config, path + " is not a folder that this user can open: " +
                                        std::strerror(errno) + "; choose another --run=FOLDER");
  struct stat folder {};
  Status done;
  if (fstat(fd, &folder) != 0)
    done = system_error("cannot read", path, errno);
  else if (folder.st_uid != geteuid())
    done = Status(Code::bad_config, path + " belongs to another user (uid " +
                                        std::to_string(folder.st_uid) +
                                        "): choose another folder with --run=FOLDER");
  else if ((folder.st_mode & 077) != 0 && fchmod(fd, 0700) != 0)
    done = system_error("cannot keep other users out of", path, errno);
  close(fd);
  return done;
}

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
  const int fd = open(run.key().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    return Status(Code::io, "cannot read the run's key " + run.key() + ": " + std::strerror(errno) +
                                (errno == EACCES ? "; only its owner may connect to the run" : ""));
  std::string key(kRunKeyBytes + 1, '\0');
  struct stat file {};
  const Status own = fstat(fd, &file) == 0 ? check_own(run.key(), file)
                                           : system_error("cannot read", run.key(), errno);
  const ssize_t got = own.ok() ? read(fd, key.data(), key.size()) : -1;
  close(fd);
  SS_RETURN_IF_ERROR(own);
  if (got != static_cast<ssize_t>(kRunKeyBytes))
    return Status(Code::bad_data, run.key() + " is not a run's key: start `train` again");
  if ((file.st_mode & 077) != 0)
    log::warn("{} is readable by other users, who can therefore control this run: chmod 600 it",
              run.key());
  key.resize(kRunKeyBytes);
  return key;
}

}  // namespace simplescale
