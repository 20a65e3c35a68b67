// The room runtime/run: the run folder on the shared file system, with its files and lock, the
// run's key, leader election (term.hpp), and the rendezvous of hosts. This file: the names of the
// files in a run folder (docs/operations.md), and the lock that keeps a second `train` out of it.
#pragma once

#include <string>

#include "runtime/base/files.hpp"  // reads and replaces most of these files
#include "runtime/base/status.hpp"

namespace simplescale {

struct RunFolder {
  /// Larger files of control/ are not read: parsed JSON takes 20 times as much memory as its text.
  static constexpr size_t kFileBytesMax = size_t{16} << 20;
  std::string path;
  std::string config() const { return path + "/config.toml"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string events() const { return path + "/events.jsonl"; }
  std::string ledger() const { return path + "/ledger.jsonl"; }
  std::string health() const { return path + "/health.jsonl"; }
  std::string logs() const { return path + "/logs"; }
  /// Folder of traces of steps and recoveries (runtime/observe/trace_parts.hpp).
  std::string traces() const { return path + "/traces"; }
  std::string control() const { return path + "/control"; }
  std::string status() const { return control() + "/status.json"; }
  std::string generation() const { return control() + "/generation"; }
  /// Names the current start of the run (term.hpp).
  std::string instance() const { return control() + "/instance"; }
  /// The secret that the run's processes share (run_key.hpp).
  std::string key() const { return control() + "/key"; }
  /// Where clients find the supervisor: {"term","address","instance"}.
  std::string supervisor() const { return control() + "/supervisor.json"; }
  /// Where the supervisor serves HTTP: {"url","host","term"}; missing if it does not.
  std::string http() const { return control() + "/http.json"; }
  /// The supervisor's state, for a successor that was not its standby.
  std::string state(const std::string& instance) const { return control() + "/state-" + instance; }
  /// The learning rates that users have set during the run (actors/supervisor/rates.hpp).
  std::string learning_rates() const { return control() + "/learning_rates.json"; }
  /// With which vector instructions the run computes (runtime/config/run_instructions.hpp).
  std::string instructions() const { return control() + "/instructions"; }
  /// train.tasks as tokens (runtime/feed/task_tokens.hpp).
  std::string tasks() const { return control() + "/tasks.jsonl"; }
  /// Folder of the algorithms that GPUs have chosen (chosen_products.hpp).
  std::string products() const { return control() + "/products"; }
  /// The contents of the data's buckets when the run started (runtime/data/data_files.hpp).
  std::string objects() const { return control() + "/objects.json"; }
  /// How the newest start of the run ended: {"instance","exit","reason"}; missing while it runs.
  std::string end() const { return control() + "/end.json"; }
};

/// Locks <run>/control/lock until destroyed; the kernel releases it if the process dies.
class RunLock {
 public:
  RunLock() = default;
  RunLock(RunLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();
  /// bad_config: another process trains in this folder, or the lock file cannot be written.
  static Result<RunLock> take(const RunFolder& folder);
  /// True if a launcher or an agent lives (agent_lock.hpp), or may live. Writes nothing.
  static bool held(const RunFolder& folder);

 private:
  int fd_ = -1;
};

}  // namespace simplescale
