// Shared-memory segments: memory without a file (memfd), which other processes of the same user
// open by name as long as the process that made it lives (named_descriptors.hpp). Each process that has
// mapped a segment keeps its memory. When the last one ends, the kernel frees it. No size of
// /dev/shm limits it, and nothing can remove its name.
//
//   SHM-4  Nothing is given to, or taken from, a process of another user.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// Creates a zeroed segment, replacing one of this process of the same name, e.g.
  /// "ss-<run>-n0.1-state". Reserves all pages at once, so that too little memory is an error here
  /// (io) instead of the end of some process later. sparse: reserves none; only what is reserved
  /// later may be used.
  static Result<SharedMemory> create(const std::string& name, size_t bytes, bool sparse = false);
  /// Maps a segment that a process of this host holds, as a whole, for reading and writing. patience:
  /// of the wait for that process. io, also if no process holds it, or if the holder is another
  /// user's; deadline: the holder does not answer.
  static Result<SharedMemory> open(const std::string& name,
                                   std::chrono::milliseconds patience = std::chrono::seconds(10));

  /// Reserves the pages of these bytes. io: no room, after some seconds.
  Status reserve(size_t offset, size_t bytes);
  /// Gives back the pages of these bytes: multiples of 4096. They are zero when they are reserved again.
  void release(size_t offset, size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

 private:
  void close();
  Status map();
  std::string name_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
  uint64_t offer_ = 0;  // of named_descriptors.hpp; 0: not the creator
};

}  // namespace simplescale
