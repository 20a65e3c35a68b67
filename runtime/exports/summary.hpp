// What a run came to, in one line: for the table of runs and of a sweep. Blocks on the disk.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/exports/records.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct RunSummary {
  std::string folder, name;
  /// "new" (nothing was trained yet), "finished", "stopped" (`train` goes on with it), "failed", or
  /// what status.json says of a run that lives.
  std::string state;
  uint64_t step = 0, max_steps = 0;
  std::optional<double> loss, val_loss, tokens_per_second;  // the newest
  size_t recoveries = 0;
  double time_s = 0;  // of its newest step, or its first event
};

/// not_found: no run folder. The records may be wanted for a plot.
Result<RunSummary> summarize(const std::string& folder, RunRecords* records = nullptr);
/// The run folders in and under a folder, in order of their names, at most three levels down.
std::vector<std::string> find_runs(const std::string& folder);
/// Rows as wide as their columns need; names are shown from `folder` on.
std::string summary_table(const std::vector<RunSummary>& runs, const std::string& folder);
/// A JSON list.
std::string summary_json(const std::vector<RunSummary>& runs);

}  // namespace simplescale
