#include "runtime/base/shared_memory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace simplescale {

Result<SharedMemory> SharedMemory::create(const std::string& name, size_t bytes) {
  const std::string path = "/" + name;
  shm_unlink(path.c_str());
  const int fd = shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("cannot create shared memory", name, errno);
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
    shm_unlink(path.c_str());
    memory.owner_ = false;
    return system_error("no room for " + std::to_string(bytes >> 20) + " MiB of shared memory",
                        name, error);
  }
  return memory;
}

Result<SharedMemory> SharedMemory::open(const std::string& name) {
  const int fd = shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0);
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
  if (error != 0) return system_error("cannot map shared memory", name, error);
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
  shm_unlink(("/" + name_).c_str());
  owner_ = false;
}

int unlink_shared_memory(const std::string& prefix) {
  DIR* folder = opendir("/dev/shm");
  if (!folder) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder))
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0)
      count += shm_unlink((std::string("/") + entry->d_name).c_str()) == 0;
  closedir(folder);
  return count;
}

namespace {

constexpr std::string_view kOwner = ".owner";
const std::string kFolder = "/dev/shm/";

std::vector<std::string> segments() {
  std::vector<std::string> names;
  DIR* folder = opendir(kFolder.c_str());
  if (!folder) return names;
  while (const dirent* entry = readdir(folder)) names.emplace_back(entry->d_name);
  closedir(folder);
  return names;
}

/// Requires the lock of `prefix`. Keeps the lock file: were it removed first, another process could
/// claim the prefix and create segments while this function removes them.
void remove_segments(const std::string& prefix) {
  for (const std::string& name : segments())
    if ((name.starts_with(prefix + ".") || name.starts_with(prefix + "-")) &&
        name != prefix + std::string(kOwner))
      shm_unlink(("/" + name).c_str());
}

/// True if the file has not been unlinked since it was opened.
bool still_there(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && file.st_nlink > 0;
}

/// Removes the segments that killed processes have left, of all runs of this user.
void sweep() {
  for (const std::string& name : segments()) {
    if (!name.starts_with("ss-") || !name.ends_with(kOwner)) continue;
    const int fd = open((kFolder + name).c_str(),
                        O_RDWR | O_CLOEXEC | O_NOFOLLOW);  // another user's is refused
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && still_there(fd)) {
      remove_segments(name.substr(0, name.size() - kOwner.size()));
      shm_unlink(("/" + name).c_str());
    }
    close(fd);
  }
}

}  // namespace

Result<SegmentOwner> SegmentOwner::claim(const std::string& prefix) {
  sweep();
  const std::string path = kFolder + prefix + std::string(kOwner);
  for (int tries = 0; tries < 500; ++tries) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
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

SegmentOwner::~SegmentOwner() {
  if (fd_ < 0) return;
  if (still_there(fd_)) {
    remove_segments(prefix_);
    shm_unlink(("/" + prefix_ + std::string(kOwner)).c_str());
  }
  close(fd_);
}

}  // namespace simplescale
