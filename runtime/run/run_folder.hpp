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
  /// Traces of steps and recoveries (runtime/exports/trace_parts.hpp).
  std::string traces() const { return path + "/traces"; }
  std::string control() const { return path + "/control"; }
  std::string status() const { return control() + "/status.json"; }
  std::string generation() const { return control() + "/generation"; }
  /// Which start of the run is the current one (epoch.hpp).
  std::string instance() const { return control() + "/instance"; }
  /// run_key.hpp.
  std::string key() const { return control() + "/key"; }
  /// For clients: {"epoch","address","instance"} of the supervisor.
  std::string supervisor() const { return control() + "/supervisor.json"; }
  /// Where the supervisor serves HTTP: {"url","host","epoch"}; missing without.
  std::string http() const { return control() + "/http.json"; }
  /// The supervisor's state, for one that comes after it without having been its standby.
  std::string state(const std::string& instance) const { return control() + "/state-" + instance; }
  /// How the newest start of the run ended: {"instance","exit","reason"}; missing until it has.
  std::string end() const { return control() + "/end.json"; }
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
  /// Whether some process holds it. Writes nothing.
  static bool held(const RunFolder& folder);

 private:
  int fd_ = -1;
};

}  // namespace simplescale
