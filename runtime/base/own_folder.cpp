#include "runtime/base/own_folder.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/bare_path.hpp"
#include "runtime/base/path_error.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

Status cannot_read(const std::string& path, int error) {
  return Status(path_error(error, Code::bad_config),
                "cannot read " + path + ": " + std::strerror(error));
}

Status refuse_owner(const std::string& path, uid_t owner, const std::string& advice) {
  return Status(Code::bad_config,
                path + " belongs to another user (uid " + std::to_string(owner) + "): " + advice);
}

bool is_missing(int error) {
  return error == ENOENT || error == ENOTDIR;
}

}  // namespace

bool is_trusted(uid_t owner) {
  return owner == geteuid() || owner == 0;
}

Status check_own_folder(const std::string& named, const std::string& advice) {
  const std::string path = bare_path(named);  // lstat would follow a link
  struct stat name {
  }, folder{};
  if (lstat(path.c_str(), &name) != 0)
    return is_missing(errno) ? Status() : cannot_read(path, errno);
  if (!is_trusted(name.st_uid)) return refuse_owner(path, name.st_uid, advice);
  if (stat(path.c_str(), &folder) != 0)
    return is_missing(errno) ? Status() : cannot_read(path, errno);
  if (!is_trusted(folder.st_uid)) return refuse_owner(path, folder.st_uid, advice);
  const bool group_replaces = folder.st_uid != geteuid() && (folder.st_mode & S_IWGRP) != 0 &&
                              (folder.st_mode & S_ISVTX) == 0;
  if (S_ISDIR(folder.st_mode) && ((folder.st_mode & S_IWOTH) != 0 || group_replaces))
    return Status(Code::bad_config,
                  path + " can be written by other users: " + advice + ", or chmod go-w " + path);
  return {};
}

Status check_own_entries(
    const std::string& folder, const std::string& advice,
    const std::function<Status(const std::string& path, const struct stat& entry)>& visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat file {};
    if (lstat(path.c_str(), &file) != 0) {
      if (errno == ENOENT) continue;  // another process has removed it
      return cannot_read(path, errno);
    }
    if (!is_trusted(file.st_uid)) return refuse_owner(path, file.st_uid, advice);
    if (visit) SS_RETURN_IF_ERROR(visit(path, file));
  }
  return !error || is_missing(error.value()) ? Status() : cannot_read(folder, error.value());
}

Status check_output_folder(const std::string& path, const std::string& key) {
  const std::string advice =
      "name another " + key + ", or add --trust-folder if you trust the users who may write it";
  SS_RETURN_IF_ERROR(check_own_folder(path, advice));
  struct stat folder {};
  if (stat(path.c_str(), &folder) != 0 || folder.st_uid == geteuid()) return {};
  return check_own_entries(path, advice);
}

}  // namespace simplescale
