// The way into a run, shared by `train` on one machine, `train` as a task of Slurm, and `submit`.
#pragma once

#include <string>

#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct RunStart {
  std::string config_file;
  Config config;  // with absolute paths, and the batch that the ledger is checked against
  Plan plan;
};
/// run: the run's folder, or "".
Result<RunStart> run_start(const std::string& config_file, Overrides overrides,
                           const std::string& run);

/// bad_config: the folder holds another run, or something else than a run.
Status check_run_folder(const RunFolder& run, const Config& config);
/// Makes the run's folder, or checks that the one there is of this configuration.
Status open_run_folder(const RunFolder& run, const Config& config);
/// Makes the folder as far as the lock needs it, and takes the lock.
Result<RunLock> lock_run(const RunFolder& run);
/// Prepares the tokens where that is still to be done, and checks them.
Status ready_data(const Config& config, const Plan& plan);

}  // namespace simplescale
