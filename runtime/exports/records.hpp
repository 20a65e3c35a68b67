// What a run has recorded (metrics.jsonl, events.jsonl), read back: for exports, tables and plots.
// Blocks on the disk. The files may still be written to: half a last line is left for later.
#pragma once

#include <compare>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Of a line in metrics.jsonl: later lines have greater positions. A step that is made again has a
/// higher generation.
struct Position {
  uint64_t generation = 0, step = 0;
  auto operator<=>(const Position&) const = default;
};

struct MetricsRow {
  double time_s = 0;  // since the epoch
  Position at;
  std::vector<std::pair<std::string, double>> scalars;  // finite ones, by their names in the file
  std::optional<double> find(const std::string& name) const;
};
/// One line: loss, grad_norm, lr, tokens_per_second, step_ms, mfu, generation. Null: no such line.
std::optional<MetricsRow> parse_metrics(const std::string& line);

/// Follows a file that others append lines to.
class LineFollower {
 public:
  explicit LineFollower(std::string path) : path_(std::move(path)) {}
  /// The next whole line, if there is one.
  bool next(std::string& line);

 private:
  std::string path_, partial_;
  std::ifstream file_;
};

struct Recovery {
  double time_s = 0, ms = 0;
  uint64_t step = 0;
};
/// A line of events.jsonl, if it is the end of an incident.
std::optional<Recovery> parse_recovery(const std::string& line);

struct RunRecords {
  std::vector<MetricsRow> rows;  // one a step, in order: of a step made again its last line
  std::vector<Recovery> recoveries;
  std::optional<double> val_loss;                       // the newest
  double begin_s = 0;                                   // of its first event
  std::string last_kind;                                // of its last event
  std::vector<std::pair<uint64_t, double>> val_losses;  // by step
};
/// A run without lines has empty records.
RunRecords read_records(const RunFolder& run);

}  // namespace simplescale
