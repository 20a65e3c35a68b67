// Exports a run's metrics to TensorBoard and Weights & Biases files. It runs in the supervisor's
// process, on a thread of its own, and follows metrics.jsonl and events.jsonl: a disk that hangs
// does not block the supervisor. A new supervisor writes the
// files again, from the beginning of the run: the exported files are never read.
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
  /// may_write is called on the thread before every write; after it has returned false nothing is
  /// written (LEAD-1: a deposed supervisor). patience_ms: how long finish() and the destructor wait
  /// for the disk.
  Exporter(RunFolder run, Config config, std::function<bool()> may_write,
           int64_t patience_ms = 10'000);
  ~Exporter();  // exports the records written so far
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  /// Null if the configuration wants no exports.
  static std::shared_ptr<Exporter> make(const RunFolder& run, const Config& config,
                                        std::function<bool()> may_write);

  /// Call after the records have grown. Never blocks.
  void wake();
  /// Call when the run has ended and its records are written: exports them, then the exit code.
  void finish(int exit_code);

 private:
  struct Follower;
  void end(std::optional<int> exit_code);
  const int64_t patience_ms_;
  std::shared_ptr<Follower> follower_;  // outlives the Exporter if the file system hangs
};

}  // namespace simplescale
