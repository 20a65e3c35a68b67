// Handles checkpoint.upload before and after the processes of a run: a run whose checkpoints were
// lost continues from its object store, and checkpoints that the supervisor could no longer upload
// are uploaded. Blocks on the network; prints what it does. Requires the run's lock.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// If the object store has a newer checkpoint of this run than the run's folder, downloads and
/// verifies it. The run is the same if its folder has the id that `latest` names, or if it has no
/// folder yet and the same run.name. bad_config: it is another run, or access is denied. io: the
/// store cannot be reached and the run has no checkpoint; with a checkpoint, the run continues from
/// that.
Status restore_from_bucket(const RunFolder& run, const Config& config, const Plan& plan);

/// Uploads missing checkpoints. stopped: called often; true ends the upload. io: some are not
/// uploaded, and the same `train` tries again; otherwise errors as CheckpointBucket::update().
Status finish_upload(const RunFolder& run, const Config& config, std::function<bool()> stopped);

}  // namespace simplescale
