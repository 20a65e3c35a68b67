#include "runtime/base/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/host_memory.hpp"
#include "runtime/base/limits.hpp"
#include "runtime/base/named_descriptors.hpp"

namespace simplescale {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kMemoryTries = 500;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

/// -1: see errno.
int make_memory(const std::string& name) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);  // before Linux 6.3
}

/// Gives the segment its size. Returns an errno.
int resize(int fd, size_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return errno;
  // A reader that maps it must not fault because its end has moved.
  return fcntl(fd, F_ADD_SEALS, kSeals) != 0 ? errno : 0;
}

/// Reserves pages. Returns an errno.
int reserve_pages(int fd, size_t offset, size_t bytes) {
  // Without limits, Linux would kill a process to make room. What it keeps for itself is little.
  // The processes of an agent that was killed have some seconds to give back theirs.
  for (int tries = 0; bytes > memory_left(); ++tries) {
    if (tries == kMemoryTries) return ENOMEM;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  int error = EINTR;
  while (error == EINTR)
    error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return error;
}

/// In place of an earlier offer of this process. Another process with the name has some seconds to
/// end.
Result<uint64_t> offer(const std::string& name, int fd) {
  if (const uint64_t earlier = find_offer(name)) withdraw_offer(earlier);
  for (int tries = 0; tries < kMemoryTries; ++tries) {
    SS_ASSIGN(const int socket, take_name(name));
    if (socket >= 0) return offer_descriptor(name, socket, fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Status(Code::io, "another process holds shared memory " + name);
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const std::string& name, size_t bytes, bool sparse) {
  SharedMemory memory;
  memory.name_ = name;
  memory.fd_ = make_memory(name);
  if (memory.fd_ < 0) return system_error("cannot create shared memory", name, errno);
  memory.bytes_ = bytes ? bytes : 1;
  // The size before the pages: Linux chooses huge pages by it.
  if (const int error = resize(memory.fd_, memory.bytes_); error != 0)
    return system_error("cannot create shared memory", name, error);
  if (!sparse) SS_RETURN_IF_ERROR(memory.reserve(0, memory.bytes_));
  SS_RETURN_IF_ERROR(memory.map());
  SS_ASSIGN(memory.offer_, offer(name, memory.fd_));
  return memory;
}

Result<SharedMemory> SharedMemory::open(const std::string& name,
                                        std::chrono::milliseconds patience) {
  auto received = receive_descriptor(name, patience);
  if (received.status().code() == Code::not_found)
    return Status(Code::io, received.status().in("shared memory").message());
  SharedMemory memory;
  SS_ASSIGN(memory.fd_, std::move(received));
  memory.name_ = name;
  struct stat info {};
  const int seals = fcntl(memory.fd_, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory.fd_, &info) != 0 || info.st_size <= 0)
    return Status(Code::io, "shared memory " + name + " is no segment of this program");
  memory.bytes_ = static_cast<size_t>(info.st_size);
  SS_RETURN_IF_ERROR(memory.map());
  return memory;
}

Status SharedMemory::reserve(size_t offset, size_t bytes) {
  SS_ASSERT(offset <= bytes_ && bytes <= bytes_ - offset);
  if (bytes == 0) return {};
  if (const int error = reserve_pages(fd_, offset, bytes); error != 0)
    return system_error("no room for " + std::to_string(bytes >> 20) + " MiB of shared memory",
                        name_, error);
  return {};
}

void SharedMemory::release(size_t offset, size_t bytes) {
  SS_ASSERT(offset <= bytes_ && bytes <= bytes_ - offset);
  if (bytes == 0) return;
  const int freed = fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(offset), static_cast<off_t>(bytes));
  SS_ASSERT(freed == 0);  // memory has no reason to refuse
}

Status SharedMemory::map() {
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  const int error = errno;
  if (data == MAP_FAILED)
    return system_error("cannot map shared memory" + address_space_hint(), name_, error);
  data_ = data;
  return {};
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
    fd_ = std::exchange(other.fd_, -1);
    offer_ = std::exchange(other.offer_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  close();
}

void SharedMemory::close() {
  if (offer_ != 0) withdraw_offer(std::exchange(offer_, 0));
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (data_) munmap(std::exchange(data_, nullptr), bytes_);
}

}  // namespace simplescale
