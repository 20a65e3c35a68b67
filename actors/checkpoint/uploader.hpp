// Uploads the run's checkpoints to an object store (checkpoint.upload) during training. The
// uploader is a detached actor in the supervisor's process, because it waits for network and disk:
// a slow server delays neither training nor the publisher. In: local::UploadCheckpoints. Out, to
// the supervisor: local::Uploaded, after each upload, and after the first of several failures in a
// row. It tries failed uploads again with the next checkpoint, and every minute.
#pragma once

#include <atomic>
#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/bucket.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

namespace local {
/// The supervisor sends this to the uploader: checkpoints up to this step may be used (as in
/// PruneCheckpoints).
struct UploadCheckpoints {
  uint64_t step;
};
/// The uploader sends this to itself, a minute after a failure.
struct RetryUpload {};
/// The uploader sends this to the supervisor: the uploaded steps, or why the upload failed.
struct Uploaded {
  std::vector<uint64_t> steps;
  std::string error;
};
}  // namespace local

/// Which checkpoints the configuration keeps.
KeepRules keep_rules(const Config& config);

/// The object store of a configuration with checkpoint.upload, as this run uses it. Sends no
/// request. leads: as in BucketOptions. stopped: true ends the requests soon. bad_config: the URL or
/// the credentials are wrong; io: the run's id cannot be read.
Result<std::shared_ptr<CheckpointBucket>> open_bucket(const Config& config, const RunFolder& run,
                                                      std::function<bool()> leads,
                                                      std::function<bool()> stopped,
                                                      StoreLimits limits = {});

struct UploaderOptions {
  Config config;
  RunFolder run;
  std::function<bool()> leads;
  /// Set it to true before the actor is told to exit, because the actor may wait for the network.
  std::shared_ptr<std::atomic<bool>> stopped = std::make_shared<std::atomic<bool>>(false);
};
/// Returns an invalid handle without checkpoint.upload.
caf::actor spawn_uploader(caf::actor_system& system, caf::actor supervisor,
                          UploaderOptions options);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::UploadCheckpoints)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::RetryUpload)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::Uploaded)
