// FileOps with injected faults: a full or a slow disk, for a limited time. The checkpoint writer
// uses it, the node actor sets it. Any thread.
#pragma once

#include <atomic>
#include <chrono>

#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

class DiskFaults final : public FileOps {
 public:
  /// For this time, every create, write and fsync fails with "no space left on device".
  void fill(std::chrono::milliseconds how_long) { full_until_ns_ = until(how_long); }
  /// For `how_long`, every create, write and fsync takes `each` longer.
  void slow_down(std::chrono::milliseconds each, std::chrono::milliseconds how_long) {
    slow_ms_ = each.count();
    slow_until_ns_ = until(how_long);
  }

  Result<int> create(const std::string& path) override;
  Status write(int fd, const std::string& path, uint64_t offset, const void* data,
               size_t bytes) override;
  Status fsync(int fd, const std::string& path) override;

 private:
  static int64_t until(std::chrono::milliseconds how_long);
  /// Sleeps while the disk is slow; returns an error while it is full.
  Status apply_faults(const std::string& path) const;
  std::atomic<int64_t> full_until_ns_ = 0, slow_until_ns_ = 0, slow_ms_ = 0;
};

}  // namespace simplescale
