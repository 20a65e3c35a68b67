// Shared-memory segments: files of mode 0600 in /dev/shm/simplescale-<uid>-<random>/, a folder of
// mode 0700. One process creates and unlinks a segment; other processes of the same user map it by
// name. A segment that outlives a killed process is removed by the next process that claims any
// prefix (SegmentOwner).
//
//   SHM-4  Nothing is mapped, locked or removed unless this user alone may use it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "runtime/base/status.hpp"

namespace simplescale {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// Creates a zeroed segment, replacing one of the same name. name: without '/', e.g.
  /// "ss-<run>-n0.1-state". Reserves all pages at once, so that a full /dev/shm is an error here
  /// (io) instead of a SIGBUS later.
  static Result<SharedMemory> create(const std::string& name, size_t bytes);
  /// Maps an existing segment as a whole, for reading and writing. io, also if there is none, or if
  /// another user owns it or may use it.
  static Result<SharedMemory> open(const std::string& name);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  /// Removes the name now; existing mappings stay valid. The creator's destructor does it, too.
  void unlink();

 private:
  void close();
  std::string name_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool owner_ = false;
};

/// Removes every segment whose name begins with `prefix`, e.g. those that a killed agent left.
/// Returns their number.
int unlink_shared_memory(const std::string& prefix);

/// Owns all segments whose names begin with `prefix` followed by "." or "-", by a lock on the
/// segment "<prefix>.owner". The kernel releases the lock when the process ends, in whatever way.
class SegmentOwner {
 public:
  /// Takes the lock. Before that, removes the segments of all owners (of this user) that have ended
  /// without doing so, those of this prefix included. unavailable: another process has held the
  /// lock for 5 s. io.
  static Result<SegmentOwner> claim(const std::string& prefix);
  SegmentOwner(SegmentOwner&& other) noexcept
      : prefix_(std::move(other.prefix_)), fd_(std::exchange(other.fd_, -1)) {}
  SegmentOwner& operator=(SegmentOwner&&) = delete;
  ~SegmentOwner();  // removes the segments and the lock

 private:
  SegmentOwner(std::string prefix, int fd) : prefix_(std::move(prefix)), fd_(fd) {}
  std::string prefix_;
  int fd_;
};

/// A lock that processes of this user on this host take on a name. The kernel releases it when the
/// process ends, in whatever way. Processes that do not share /dev/shm do not see each other's.
class HostLock {
 public:
  HostLock() = default;  // of nothing
  /// shared: other processes may hold it at the same time, if they all want to share it. Returns
  /// within 0.1 s. unavailable: another process holds it. io. Any thread.
  static Result<HostLock> take(const std::string& name, bool shared);
  HostLock(HostLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  HostLock& operator=(HostLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~HostLock();

 private:
  int fd_ = -1;
};

}  // namespace simplescale
