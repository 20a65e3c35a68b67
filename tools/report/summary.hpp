// The result of a run in one line, for the tables of `runs` and `sweep`. Blocks on the disk.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

struct RunSummary {
  std::string folder, name;
  std::string from;  // run.from: whose weights the run began with; or ""
  /// "new" (no step yet), "finished", "stopped" (`train` resumes it), "failed", or for a running
  /// run the state in status.json.
  std::string state;
  uint64_t step = 0, max_steps = 0;
  std::optional<double> loss, val_loss, tokens_per_second;  // the newest
  nlohmann::json tasks;  // the newest scores of tasks, as in metrics.jsonl; null: none
  size_t recoveries = 0;
  double time_s = 0;  // time of the newest step, or of the first event
};

/// records: set to the run's records unless null. not_found: not a run folder.
Result<RunSummary> summarize(const std::string& folder, RunRecords* records = nullptr);
/// The run folders in a folder, at most three levels down, ordered by name. The folder itself if it
/// is a run folder.
std::vector<std::string> find_runs(const std::string& folder);
/// A table with a header. The runs' names are their paths relative to `folder`.
std::string summary_table(const std::vector<RunSummary>& runs, const std::string& folder);
/// A JSON list.
std::string summary_json(const std::vector<RunSummary>& runs);

/// A run of a sweep.
struct SweepResult {
  RunSummary run;
  std::vector<std::pair<std::string, std::string>> choices;  // the varied keys and their values
  bool best = false;
};
/// Marks the run with the lowest validation loss, or with the lowest training loss if no run has a
/// validation loss. If some runs are finished, only these count.
void mark_best(std::vector<SweepResult>& results);
/// summary_table() with a column for each varied key. The best run comes first, marked by `*`; runs
/// without a loss come last.
std::string sweep_table(const std::vector<SweepResult>& results, const std::string& folder);
/// summary_json() in the order of the sweep, with `choices` (value by key) and `best`.
std::string sweep_json(const std::vector<SweepResult>& results);

}  // namespace simplescale
