// checkpoint.upload before and after the processes of a run: a run whose checkpoints were lost
// continues from its object store, and what the supervisor could not upload any more is uploaded.
// Blocks on the network; prints what it does. Requires the run's lock.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// If the object store has a newer checkpoint of this run than its folder, downloads and verifies
/// it. A run is the same if its folder has the id that `latest` names, or if it has no folder yet
/// and the same run.name. Otherwise, and without access, bad_config. io: the store cannot be reached
/// and the run has no checkpoint; with one, the run goes on with that.
Status restore_from_bucket(const RunFolder& run, const Config& config, const Plan& plan);

/// Uploads what is missing. stopped: asked often; true ends the upload. io: not all is uploaded, and
/// the same `train` tries again; otherwise errors as CheckpointBucket::update().
Status finish_upload(const RunFolder& run, const Config& config, std::function<bool()> stopped);

}  // namespace simplescale
