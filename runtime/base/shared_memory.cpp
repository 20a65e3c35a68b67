#include "runtime/base/shared_memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace simplescale {

namespace {

constexpr std::string_view kOwner = ".owner";
constexpr int kTries = 500, kLockTries = 20;
const std::string kRoot = "/dev/shm/";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* entries = opendir(folder.c_str());
  if (!entries) return names;
  while (const dirent* entry = readdir(entries))
    if (const std::string_view name = entry->d_name; name != "." && name != "..")
      names.emplace_back(name);
  closedir(entries);
  return names;
}

/// Opens a file or folder that belongs to this user alone. -1 and errno: EPERM if another user owns
/// it or may use it, or if it is of another type (S_IFREG, S_IFDIR); a link is not followed.
int open_own(const std::string& path, int flags, mode_t type) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return -1;
  struct stat info {};
  if (fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == type && info.st_uid == geteuid() &&
      (info.st_mode & 077) == 0)
    return fd;
  ::close(fd);
  errno = EPERM;
  return -1;
}

bool is_own_folder(const std::string& path) {
  const int fd = open_own(path, O_RDONLY | O_DIRECTORY, S_IFDIR);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

std::string folder_prefix() {
  return "simplescale-" + std::to_string(geteuid()) + "-";
}

/// This user's folders in /dev/shm, sorted, with '/' at the end: one, or more if processes that
/// began at once have each made one. Other users can make folders with such names, but no folder
/// that belongs to this user; /dev/shm is sticky, so they cannot replace one either.
std::vector<std::string> our_folders() {
  std::vector<std::string> folders;
  for (const std::string& name : names_in(kRoot)) {
    if (!name.starts_with(folder_prefix()) || !is_own_folder(kRoot + name)) continue;
    folders.push_back(kRoot + name + "/");
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

bool is_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
}

/// Path of the segment `name`; empty if there is none. Looks first where the last one was: other
/// users can make /dev/shm so full of names that a list of it takes a second.
std::string find(const std::string& name) {
  static std::mutex lock;
  static std::string last;
  if (!is_name(name)) return "";
  std::lock_guard guard(lock);
  const auto holds = [&](const std::string& folder) {
    return access((folder + name).c_str(), F_OK) == 0;
  };
  if (!last.empty() && holds(last) && is_own_folder(last.substr(0, last.size() - 1)))
    return last + name;
  for (const std::string& folder : our_folders())
    if (holds(folder)) return (last = folder) + name;
  return "";
}

/// Path of the segment `name`, or the path for a new one, whose folder this function makes. The
/// folder's name is random, so that no other user can have taken it.
Result<std::string> place(const std::string& name) {
  if (!is_name(name)) return Status(Code::bad_data, "'" + name + "' is no name of shared memory");
  if (std::string path = find(name); !path.empty()) return path;
  if (const auto folders = our_folders(); !folders.empty()) return folders.front() + name;
  unsigned char random[8];
  if (getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    return system_error("cannot make random bytes for", kRoot, errno);
  std::string folder = kRoot + folder_prefix();
  for (const unsigned char byte : random) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    folder += digits;
  }
  if (mkdir(folder.c_str(), 0700) != 0) return system_error("cannot make", folder, errno);
  return folder + "/" + name;
}

/// Removes a segment, and its folder if that is empty now.
bool remove(const std::string& path) {
  const bool removed = ::unlink(path.c_str()) == 0;
  rmdir(path.substr(0, path.rfind('/')).c_str());
  return removed;
}

/// Makes an empty file for a segment, in place of one with the same name. Sets `path`. -1: see
/// errno.
Result<int> make_file(const std::string& name, std::string& path) {
  for (int tries = 1;; ++tries) {
    SS_ASSIGN(path, place(name));
    ::unlink(path.c_str());
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    // ENOENT: another process has removed the folder, which was empty.
    if (errno != ENOENT || tries == kTries)
      return system_error("cannot create shared memory", path, errno);
  }
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const std::string& name, size_t bytes) {
  std::string path;
  SS_ASSIGN(const int fd, make_file(name, path));
  SharedMemory memory;
  memory.name_ = name;
  memory.owner_ = true;
  int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes ? bytes : 1));
  if (error == 0) {
    void* data = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
      error = errno;
    else
      memory.data_ = data, memory.bytes_ = bytes ? bytes : 1;
  }
  ::close(fd);
  if (error != 0) {
    memory.unlink();
    return system_error("no room for " + std::to_string(bytes >> 20) + " MiB of shared memory",
                        path, error);
  }
  return memory;
}

Result<SharedMemory> SharedMemory::open(const std::string& name) {
  const std::string path = find(name);
  const int fd = path.empty() ? -1 : open_own(path, O_RDWR, S_IFREG);
  if (path.empty()) errno = ENOENT;
  if (fd < 0 && errno == EPERM)
    return Status(Code::io, path + " is not a file that only this user may use: other users may " +
                                "have changed it; remove it");
  if (fd < 0) return system_error("cannot open shared memory", name, errno);
  struct stat info {};
  SharedMemory memory;
  memory.name_ = name;
  int error = fstat(fd, &info) != 0 ? errno : info.st_size == 0 ? EINVAL : 0;
  if (error == 0) {
    memory.bytes_ = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, memory.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
      error = errno;
    else
      memory.data_ = data;
  }
  ::close(fd);
  if (error != 0) return system_error("cannot map shared memory", path, error);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept {
  *this = std::move(other);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    close();
    name_ = std::move(other.name_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owner_ = std::exchange(other.owner_, false);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  close();
}

void SharedMemory::close() {
  if (data_) munmap(data_, bytes_);
  data_ = nullptr;
  if (owner_) unlink();
}

void SharedMemory::unlink() {
  if (const std::string path = find(name_); !path.empty()) remove(path);
  owner_ = false;
}

int unlink_shared_memory(const std::string& prefix) {
  int count = 0;
  for (const std::string& folder : our_folders())
    for (const std::string& name : names_in(folder))
      if (name.starts_with(prefix)) count += remove(folder + name);
  return count;
}

namespace {

/// Requires the lock of `prefix`. Keeps the lock file: were it removed first, another process could
/// claim the prefix and create segments while this function removes them.
void remove_segments(const std::string& prefix) {
  for (const std::string& folder : our_folders())
    for (const std::string& name : names_in(folder))
      if ((name.starts_with(prefix + ".") || name.starts_with(prefix + "-")) &&
          name != prefix + std::string(kOwner))
        remove(folder + name);
}

/// True if the file has not been unlinked since it was opened.
bool still_there(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && file.st_nlink > 0;
}

/// Removes the segments that killed processes have left, of all runs of this user.
void sweep() {
  for (const std::string& folder : our_folders())
    for (const std::string& name : names_in(folder)) {
      if (!name.starts_with("ss-") || !name.ends_with(kOwner)) continue;
      const int fd = open_own(folder + name, O_RDWR, S_IFREG);
      if (fd < 0) continue;
      if (flock(fd, LOCK_EX | LOCK_NB) == 0 && still_there(fd)) {
        remove_segments(name.substr(0, name.size() - kOwner.size()));
        remove(folder + name);
      }
      close(fd);
    }
}

}  // namespace

Result<SegmentOwner> SegmentOwner::claim(const std::string& prefix) {
  sweep();
  std::string path;
  for (int tries = 0; tries < kTries; ++tries) {
    SS_ASSIGN(path, place(prefix + std::string(kOwner)));
    const int fd = open_own(path, O_RDWR | O_CREAT, S_IFREG);
    if (fd < 0 && errno == ENOENT) continue;  // another process has removed the folder
    if (fd < 0) return system_error("cannot create", path, errno);
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (locked && still_there(fd)) {
      remove_segments(prefix);
      return SegmentOwner(prefix, fd);
    }
    close(fd);  // another process is sweeping, or has removed this file in between
    if (!locked) usleep(10'000);
  }
  return Status(Code::unavailable, "another process owns the shared memory of " + path);
}

/// The file has an owner's name, so that sweep() removes it once no process holds the lock.
Result<HostLock> HostLock::take(const std::string& name, bool shared) {
  std::string path;
  for (int tries = 0; tries < kLockTries; ++tries) {
    SS_ASSIGN(path, place("ss-" + name + std::string(kOwner)));
    HostLock lock;
    lock.fd_ = open_own(path, O_RDWR | O_CREAT, S_IFREG);
    if (lock.fd_ < 0 && errno == ENOENT) continue;  // another process has removed the folder
    if (lock.fd_ < 0) return system_error("cannot create", path, errno);
    const bool locked = flock(lock.fd_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0;
    if (locked && still_there(lock.fd_)) return lock;
    if (!locked) usleep(5'000);  // the process that sweeps holds it for a moment
  }
  return Status(Code::unavailable, "another process holds " + path);
}

HostLock::~HostLock() {
  if (fd_ >= 0) close(fd_);
}

SegmentOwner::~SegmentOwner() {
  if (fd_ < 0) return;
  if (still_there(fd_)) {
    remove_segments(prefix_);
    unlink_shared_memory(prefix_ + std::string(kOwner));
  }
  close(fd_);
}

}  // namespace simplescale
