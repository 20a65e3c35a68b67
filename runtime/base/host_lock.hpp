// A lock that processes of one user on one host take on a name. It lies in no file system
// (named_descriptors.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The kernel releases the lock when the process ends, in whatever way. Processes in different
/// network namespaces do not see each other's.
class HostLock {
 public:
  HostLock() = default;  // of nothing
  /// shared: other processes may hold it at the same time, if they all want to share it. Returns
  /// within seconds. unavailable: another process holds it. io. Any thread.
  static Result<HostLock> take(const std::string& name, bool shared);
  HostLock(HostLock&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), offer_(std::exchange(other.offer_, 0)) {}
  HostLock& operator=(HostLock&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(offer_, other.offer_);
    return *this;
  }
  ~HostLock();

 private:
  int socket_ = -1;     // holds the name, for this process alone
  uint64_t offer_ = 0;  // of the socket that holds the name, for all processes that share it
};

}  // namespace simplescale
