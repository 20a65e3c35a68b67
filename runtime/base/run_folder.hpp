// Names within a run's folder, and the lock that keeps a second `train` out of it.
#pragma once

#include <string>

#include "runtime/base/files.hpp"  // how most of these files are read and replaced
#include "runtime/base/status.hpp"

namespace simplescale {

struct RunFolder {
  std::string path;
  std::string config() const { return path + "/config.toml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string ledger() const { return path + "/ledger.jsonl"; }
  std::string logs() const { return path + "/logs"; }
  std::string control() const { return path + "/control"; }
  std::string status() const { return control() + "/status.json"; }
  std::string generation() const { return control() + "/generation"; }
  /// Where the supervisor of one start of the run can be reached.
  std::string supervisor(const std::string& instance) const {
    return control() + "/supervisor-" + instance + ".address";
  }
};

/// Holds <run>/control/lock while it lives.
class RunLock {
 public:
  RunLock() = default;
  RunLock(RunLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();
  /// unavailable: another process trains in this folder.
  static Result<RunLock> take(const RunFolder& folder);

 private:
  int fd_ = -1;
};

}  // namespace simplescale
