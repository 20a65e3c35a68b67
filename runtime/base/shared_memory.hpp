// A POSIX shared-memory segment, private to its user (mode 0600). The owner creates and unlinks it;
// others map it by name.
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

  /// A new zeroed segment; replaces one left over under the same name. name has no '/', e.g.
  /// "ss-<run>-n0.1-state". The pages are reserved at once, so that a full /dev/shm is an error
  /// here and no SIGBUS later.
  static Result<SharedMemory> create(const std::string& name, size_t bytes);
  /// Maps an existing segment, whole, read-write.
  static Result<SharedMemory> open(const std::string& name);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  /// Removes the name now; mappings stay valid. Done by the destructor of the one that created it.
  void unlink();

 private:
  void close();
  std::string name_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool owner_ = false;
};

/// Removes every segment whose name begins with prefix (what a killed agent left behind). Returns
/// how many.
int unlink_shared_memory(const std::string& prefix);

/// Says who answers for the segments that begin with `prefix` followed by "." or "-": a lock on the
/// segment "<prefix>.owner", which the kernel takes back when the process ends, however it does.
class SegmentOwner {
 public:
  /// Also removes all segments whose owner has ended without doing so itself, those of this prefix
  /// included. unavailable: another process owns it, and has not let go for 5 s.
  static Result<SegmentOwner> claim(const std::string& prefix);
  SegmentOwner(SegmentOwner&& other) noexcept
      : prefix_(std::move(other.prefix_)), fd_(std::exchange(other.fd_, -1)) {}
  SegmentOwner& operator=(SegmentOwner&&) = delete;
  ~SegmentOwner();  // removes the segments

 private:
  SegmentOwner(std::string prefix, int fd) : prefix_(std::move(prefix)), fd_(fd) {}
  std::string prefix_;
  int fd_;
};

}  // namespace simplescale
