#include "runtime/run/run_key.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/base/create_file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/own_folder.hpp"
#include "runtime/base/path_error.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
constexpr int kKeyTries = 10;

Status check_own_file(const std::string& path, const struct stat& file) {
  if (!is_trusted(file.st_uid))
    return Status(Code::bad_data, path + " belongs to another user (uid " +
                                      std::to_string(file.st_uid) + "), who could control this " +
                                      "command by it: call it as that user");
  if ((file.st_mode & kOthersWrite) != 0)
    return Status(Code::bad_data, path + " can be written by other users, so it is not trusted: " +
                                      "remove it, or check what it holds and chmod go-w " + path);
  return {};
}

Status failed(const char* what, const std::string& path) {
  return Status(path_error(errno, Code::bad_config),
                std::string(what) + " " + path + ": " + std::strerror(errno));
}

/// Removes permissions of a file or folder of this user. In its folder nobody else can replace it.
Status narrow(const std::string& path, const struct stat& file, mode_t without) {
  if (file.st_uid != geteuid() || (file.st_mode & without) == 0) return {};
  if (chmod(path.c_str(), file.st_mode & 07777 & ~without) == 0 || errno == ENOENT) return {};
  return failed("cannot keep other users out of", path);
}

/// True for files whose text may become a command.
bool leads_to_commands(const std::string& name) {
  return name == "config.toml" || name == "submit.toml" || name == "submit.sh";
}

/// Checks what other users may have put into a folder before they were kept out. narrows: also
/// removes their right to write the entries.
Status check_entries(const std::string& folder, bool narrows) {
  return check_own_entries(folder,
                           "move it out of this folder, or choose another one with --run=FOLDER",
                           [narrows](const std::string& path, const struct stat& entry) -> Status {
                             if (leads_to_commands(fs::path(path).filename()))
                               if (const Status own = check_own(path); own.code() == Code::bad_data)
                                 return Status(Code::bad_config, own.message());
                             const bool narrow_it = narrows && !S_ISLNK(entry.st_mode);
                             return narrow_it ? narrow(path, entry, kOthersWrite) : Status();
                           });
}

/// False: the folder does not exist.
Result<bool> keep_others_out_of_control(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return false;
  if (fd < 0)
    return Status(path_error(errno, Code::bad_config),
                  path + " is not a folder that this user can open: " + std::strerror(errno) +
                      "; choose another --run=FOLDER");
  struct stat folder {};
  Status done;
  if (fstat(fd, &folder) != 0)
    done = failed("cannot read", path);
  else if (folder.st_uid != geteuid())
    done = Status(Code::bad_config, path + " belongs to another user (uid " +
                                        std::to_string(folder.st_uid) +
                                        "): choose another folder with --run=FOLDER");
  else if ((folder.st_mode & 077) != 0 && fchmod(fd, 0700) != 0)
    done = failed("cannot keep other users out of", path);
  close(fd);
  SS_RETURN_IF_ERROR(done);
  SS_RETURN_IF_ERROR(check_entries(path, true));
  return true;
}

/// False for a folder with other files and for an empty one: a refused command leaves both
/// unchanged.
bool is_run_or_sweep(const std::string& path) {
  std::error_code error;
  return std::ranges::any_of(std::array{"/config.toml", "/control", "/sweep.toml"},
                             [&](const char* name) { return fs::exists(path + name, error); });
}

/// As keep_others_out(). True: the folder has a control/, and nobody else can write either.
Result<bool> check_folder(const RunFolder& run) {
  const std::string& path = run.path;
  SS_RETURN_IF_ERROR(check_own_folder(path, "choose another folder with --run=FOLDER"));
  struct stat folder {};
  if (stat(path.c_str(), &folder) != 0)
    return errno == ENOENT || errno == ENOTDIR ? Result<bool>(false) : failed("cannot read", path);
  if (!S_ISDIR(folder.st_mode)) return false;
  const bool narrows = is_run_or_sweep(path);
  if (narrows) SS_RETURN_IF_ERROR(narrow(path, folder, S_IWGRP));
  SS_RETURN_IF_ERROR(check_entries(path, narrows));
  SS_ASSIGN(const bool has_control, keep_others_out_of_control(run.control()));
  return narrows && has_control;
}

/// Keeps the key of this process out of core dumps, and from debuggers of the same user.
void keep_key_inside() {
  if (!std::getenv("SIMPLESCALE_DUMPABLE")) prctl(PR_SET_DUMPABLE, 0);
}

Result<std::string> new_key(const RunFolder& run) {
  keep_key_inside();
  std::string key(kRunKeyBytes, '\0');
  if (getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size())) return key;
  return system_error("cannot make", run.key(), errno);
}

}  // namespace

Status check_own(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return system_error("cannot read", path, errno);
  if (S_ISLNK(file.st_mode)) return Status(Code::bad_data, path + " is a link: remove it");
  return check_own_file(path, file);
}

Status keep_others_out(const RunFolder& run) {
  return check_folder(run).status();
}

Status make_control(const RunFolder& run) {
  fs::path parent = fs::absolute(run.path).lexically_normal();
  if (!parent.has_filename()) parent = parent.parent_path();  // if RUN ends with "/"
  parent = parent.parent_path();
  std::error_code error;
  fs::create_directories(parent, error);
  if (error)
    return Status(path_error(error.value(), Code::bad_config),
                  "cannot create " + run.path + ": " + error.message());
  // Another task that only tests whether it can write here may remove the folder in between, and
  // another user may move a folder of theirs away. So only a check that finds both folders counts.
  for (int tries = 0; tries < kKeyTries; ++tries) {
    if (mkdir(run.path.c_str(), 0755) != 0 && errno != EEXIST)
      return failed("cannot create", run.path);
    SS_ASSIGN(const bool complete, check_folder(run));
    if (complete) return {};
    if (mkdir(run.control().c_str(), 0700) != 0 && errno != EEXIST && errno != ENOENT)
      return failed("cannot create", run.control());
  }
  return Status(Code::bad_config,
                run.path + " is a link to nothing, or is removed again and again while " +
                    "it is made: choose another folder with --run=FOLDER");
}

Status make_run_key(const RunFolder& run) {
  SS_ASSIGN(const std::string key, new_key(run));
  return write_file_atomic(run.key(), key, 0600);
}

Status make_first_run_key(const RunFolder& run) {
  SS_ASSIGN(const std::string key, new_key(run));
  return create_file(run.key(), key).status();  // of mode 0600
}

Result<std::string> read_run_key(const RunFolder& run) {
  const int fd = open(run.key().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    return Status(Code::io, "cannot read the run's key " + run.key() + ": " + std::strerror(errno) +
                                (errno == EACCES ? "; only its owner may connect to the run" : ""));
  std::string key(kRunKeyBytes + 1, '\0');
  struct stat file {};
  const Status own = fstat(fd, &file) == 0 ? check_own_file(run.key(), file)
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
  keep_key_inside();
  return key;
}

}  // namespace simplescale
