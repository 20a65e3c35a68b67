// Which checkpoints are a run's. `checkpoint.folder` may name any folder; what lies there is one
// run's only, since others would go on from it and prune it. Blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Where a run's checkpoints lie by its config.toml; RUN/checkpoints if that does not tell.
std::string checkpoints_of(const RunFolder& run);

/// bad_config: `folder` holds another run's checkpoints. ok if it is nobody's.
Status check_checkpoints_owner(const RunFolder& run, const std::string& folder);
/// The same, and from now on they are this run's, also if it is moved. Both folders are there.
Status claim_checkpoints(const RunFolder& run, const std::string& folder);

}  // namespace simplescale
