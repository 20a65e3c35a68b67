// Is a run folder right? Checks the checkpoints' checksums, the sample ledger and the event and
// metrics logs. Reads only. Any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

struct VerifyReport {
  bool ok = true;
  std::vector<std::string>
      lines;  // what was checked, and each thing that is wrong with file and line
};

/// Errors: bad_data if the folder is no run folder. What is wrong inside is in the report.
Result<VerifyReport> verify_run(const std::string& run_folder);

}  // namespace simplescale
