// Verifies a run folder: checksums of the checkpoints, sample ledger, events and metrics. Reads
// only. The run may train meanwhile: what it removes itself is no error. Any thread; blocks on the
// disk.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/batch_schedule.hpp"
#include "runtime/training/mixture.hpp"

namespace simplescale {

struct VerifyReport {
  bool ok = true;
  std::vector<std::string> lines;  // what was checked, and every error with its file and line
};

/// What the run's config.toml says about the samples of its steps.
struct TrainedSamples {
  Mixture mixture;
  std::optional<BatchSchedule> batch;  // none: each step has train.global_batch_size samples
};

/// bad_data: it is not a run folder. Errors found in the run are in the report.
Result<VerifyReport> verify_run(const std::string& run_folder, const TrainedSamples& trained = {});

}  // namespace simplescale
