// Writes a run's metrics for TensorBoard and Weights & Biases, as the supervisor's process sees
// them in the run's records: it follows metrics.jsonl and events.jsonl, on a thread of its own. So
// a disk that hangs holds up nobody, and whoever becomes supervisor finds out from the exported
// files themselves what is still to be written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

class Exporter {
 public:
  /// may_write is asked on the thread before anything is written; once it says no, nothing is any
  /// more (LEAD-1: a deposed supervisor). patience_ms: how long the end waits for the disk.
  Exporter(RunFolder run, Config config, std::function<bool()> may_write,
           int64_t patience_ms = 10'000);
  ~Exporter();  // writes what the records hold by then
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  /// Null if the configuration wants no exports.
  static std::shared_ptr<Exporter> make(const RunFolder& run, const Config& config,
                                        std::function<bool()> may_write);

  /// The records have grown. Never blocks.
  void wake();
  /// The run has ended with this code, and its records are written: the exports come to their end.
  void finish(int exit_code);

 private:
  struct Follower;
  void end(std::optional<int> exit_code);
  const int64_t patience_ms_;
  std::shared_ptr<Follower> follower_;  // outlives this if the file system hangs
};

}  // namespace simplescale
