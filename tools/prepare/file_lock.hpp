// A lock that one process of those that prepare a folder holds at a time. The kernel releases it when
// the process dies. One thread.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();
  /// True: this object holds the lock of the file `path`, which is created, until it is destroyed.
  /// False: another one holds it, maybe of another user. Also true where nothing can be locked: in a
  /// folder that this process may only read and that has no lock yet, and on a file system without
  /// locks, or that locks only what may be written (NFS). So a lock may save work, but the bytes of
  /// a file must not depend on it. not_found: there is no such folder; io, also of a link.
  Result<bool> try_take(const std::string& path);

 private:
  int fd_ = -1;
};

}  // namespace simplescale
