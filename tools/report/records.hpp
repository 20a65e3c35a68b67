// Reads metrics.jsonl and events.jsonl for exports, tables and plots. Blocks on the disk. The run
// may still write to the files: an incomplete last line is ignored.
#pragma once

#include <compare>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Position of a line in metrics.jsonl. A step that is trained again has a higher generation. Lines
/// that are not greater than all before them are ignored: a deposed supervisor has repeated them.
struct Position {
  uint64_t generation = 0, step = 0;
  auto operator<=>(const Position&) const = default;
};

struct MetricsRow {
  double time_s = 0;  // since 1970
  Position at;
  std::vector<std::pair<std::string, double>> scalars;  // finite values by their keys in the file
  std::optional<double> find(const std::string& name) const;
};
/// Parses one line: loss, val_loss, grad_norm, lr, tokens (trained so far), tokens_per_second,
/// step_ms, mfu, padding, generation, the losses of the sources in val_losses as val_loss/NAME, those
/// of val_loss_at/LENGTH and val_loss_by_position/FIRST, and the scores of tasks as tasks/NAME/acc,
/// acc_norm, word_perplexity and byte_perplexity.
/// Nothing if it is not a line of metrics.jsonl.
std::optional<MetricsRow> parse_metrics(const std::string& line);

/// Follows a file that another process appends lines to.
class LineFollower {
 public:
  explicit LineFollower(std::string path) : path_(std::move(path)) {}
  /// Skips the lines that are there. but_last: all but the last complete one.
  void skip(bool but_last);
  /// Reads the next complete line. False: there is none yet.
  bool next(std::string& line);

 private:
  std::string path_, partial_;
  std::ifstream file_;
};

struct Recovery {
  double time_s = 0, ms = 0;
  uint64_t step = 0;
};
/// Parses a line of events.jsonl. Nothing if it is not the end of an incident.
std::optional<Recovery> parse_recovery(const std::string& line);

struct RunRecords {
  std::vector<MetricsRow> rows;  // one per step, in order; the last line of a repeated step
  std::vector<Recovery> recoveries;
  std::optional<double> val_loss;                       // the newest
  double begin_s = 0;                                   // time of the first event
  std::vector<std::pair<uint64_t, double>> val_losses;  // by step
  nlohmann::json first_tasks, tasks;  // the first and the newest scores of tasks; null: none
};
/// Empty if the files do not exist.
RunRecords read_records(const RunFolder& run);

}  // namespace simplescale
