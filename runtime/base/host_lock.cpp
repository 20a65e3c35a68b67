#include "runtime/base/host_lock.hpp"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "runtime/base/named_descriptors.hpp"

namespace simplescale {

namespace {
constexpr int kLockTries = 20;
}  // namespace

/// Processes that share a lock hold copies of one socket, which each of them offers: the name is
/// taken as long as one of them lives. A process that holds a lock alone offers nothing.
Result<HostLock> HostLock::take(const std::string& name, bool shared) {
  const std::string key = "lock/" + name;
  for (int tries = 0; tries < kLockTries; ++tries) {
    SS_ASSIGN(int socket, take_name(key));
    if (socket < 0 && shared) {
      const auto copy = receive_descriptor(key, std::chrono::milliseconds(100));
      if (copy.ok()) socket = *copy;  // else it ends just now, or is another user's
    }
    if (socket >= 0) {
      HostLock lock;
      if (!shared) {
        lock.socket_ = socket;
      } else {
        SS_ASSIGN(lock.offer_, offer_descriptor(key, socket, socket));
      }
      return lock;
    }
    // A process that shares it may just have ended, or begun.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return Status(Code::unavailable, "another process holds " + name);
}

HostLock::~HostLock() {
  if (socket_ >= 0) close(socket_);
  if (offer_ != 0) withdraw_offer(offer_);
}

}  // namespace simplescale
