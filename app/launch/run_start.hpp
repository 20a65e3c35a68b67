// The checks and steps before a run begins: configuration, run folder, lock, data. Shared by
// `train` on one machine, `train` as a Slurm task, `submit`, `doctor` and `config validate`.
#pragma once

#include <string>

#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// The difference of a key, as text for messages and events: "was 3 and is now 4".
std::string text_of(const KeyDifference& difference);
/// "train.max_steps was 3 and is now 4, ...".
std::string joined_text(const std::vector<KeyDifference>& differences);
/// What the text of a change ends with that --change-numerics has allowed.
inline constexpr const char* kAllowedByName = "; --change-numerics allows it";

struct RunStart {
  Config
      config;  // with absolute paths, the planned train.global_batch_size, and this host's device
  Plan plan;
  std::string warning;     // of resolve_device(); or ""
  bool rate_said = false;  // train.learning_rate is on the command line
};
/// Loads a configuration and plans its run. run: overrides run.folder unless it is "".
Result<RunStart> resolve_run_start(const std::string& config_file, Overrides overrides,
                                   const std::string& run);

/// bad_config: the file has a [sweep], which `train` and `submit` do not execute.
Status refuse_sweep(const std::string& config_file, const Config& config);
/// Finds errors that keep `train` from starting this run on any host, as far as that is possible
/// before texts are prepared and without reading many tokens. For a [sweep], finds the errors that
/// its runs have in common. Writes nothing.
Status check_before_start(const RunStart& start);

/// bad_config: the folder has a run of another model or data, or something that is not a run.
Status check_run_folder(const RunFolder& run, const Config& config);
/// Creates the run's folder with config.toml, the manifest and the checkpoint of run.from. If the
/// folder exists, checks it, and prints and records the changes of its configuration. data: of
/// prepare_and_check_data(). All processes of the run read the files that `data` lists. rate_said:
/// as in RunStart.
Status open_run_folder(const RunFolder& run, const Config& config, const Plan& plan,
                       const RunData& data, bool rate_said);
/// True if the run has trained all its steps and its last checkpoint is intact; then prints that,
/// and how to train longer. Reads the checkpoint.
Result<bool> already_finished(const RunFolder& run, const Config& config, const Plan& plan);
/// Creates the folder that the lock file needs, and takes the lock. unavailable: another process
/// trains in the folder.
Result<RunLock> lock_run(const RunFolder& run);
/// Prepares the tokens if they do not exist, and checks all token files.
Result<RunData> prepare_and_check_data(const Config& config, const Plan& plan);

}  // namespace simplescale
