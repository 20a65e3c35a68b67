// Which checkpoints folder belongs to which run. `checkpoint.folder` may name any folder, but a
// folder has one owner: a second run would continue from the checkpoints of the first and prune
// them. The file "owner" in the folder names the run, and so does each checkpoint in it
// (CHECKPOINT-7). Blocks on the disk.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// The checkpoints folder of a run: checkpoint.folder of its config.toml, or else RUN/checkpoints.
std::string checkpoints_of(const RunFolder& run);

/// True if the run's events name a checkpoint that was saved. io: they cannot be read.
Result<bool> was_saved(const RunFolder& run);
/// io: the run's events name a checkpoint that was saved, or cannot be read. For a run whose folder
/// has no checkpoint: such a run never begins at step 0 by itself.
Status check_never_saved(const RunFolder& run, const std::string& folder);

/// The run's id, which it keeps when it is moved; a new run gets one. io: it cannot be read or
/// written.
Result<std::string> run_id(const RunFolder& run);
/// False: run_id() would make one.
bool has_id(const RunFolder& run);

/// bad_config: `folder` belongs to another run. ok if it has no owner, or is that of a run which has
/// lost its id.
Status check_checkpoints_owner(const RunFolder& run, const std::string& folder);
/// The same, and makes this run the owner, even if it is moved later. Both folders must exist. Writes
/// nothing if the run has saved checkpoints and none is there: the folder may not be mounted.
Status claim_checkpoints(const RunFolder& run, const std::string& folder);
/// The owner of `folder` may also use the checkpoints of another run, which it goes on with.
Status continue_checkpoints_of(const std::string& folder, const std::string& run);
/// The ids of the runs whose checkpoints may be used in `folder`, its owner's first. Empty: it has no
/// owner, all may be used.
Result<std::vector<std::string>> owning_runs(const std::string& folder);

}  // namespace simplescale
