#include "actors/checkpoint/disk_faults.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace simplescale {
namespace {

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

int64_t DiskFaults::until(std::chrono::milliseconds how_long) {
  return now_ns() + std::chrono::nanoseconds(how_long).count();
}

Status DiskFaults::apply_faults(const std::string& path) const {
  const int64_t now = now_ns();
  if (const int64_t left = slow_until_ns_ - now; left > 0)
    std::this_thread::sleep_for(
        std::min(std::chrono::nanoseconds(left),
                 std::chrono::nanoseconds(std::chrono::milliseconds(slow_ms_.load()))));
  if (now >= full_until_ns_) return {};
  return Status(Code::io, "write " + path + ": " + std::strerror(ENOSPC) + " (injected)");
}

Result<int> DiskFaults::create(const std::string& path) {
  SS_RETURN_IF_ERROR(apply_faults(path));
  return FileOps::create(path);
}

Status DiskFaults::write(int fd, const std::string& path, uint64_t offset, const void* data,
                         size_t bytes) {
  SS_RETURN_IF_ERROR(apply_faults(path));
  return FileOps::write(fd, path, offset, data, bytes);
}

Status DiskFaults::fsync(int fd, const std::string& path) {
  SS_RETURN_IF_ERROR(apply_faults(path));
  return FileOps::fsync(fd, path);
}

}  // namespace simplescale
