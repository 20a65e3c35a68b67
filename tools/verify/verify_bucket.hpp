// Verifies a run's checkpoints in an object store: `latest`, and every byte of the checkpoints that
// it lists. Reads only, and needs no room on the disk. Blocks on the network; one thread at a time.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/bucket.hpp"
#include "tools/verify/verify_run.hpp"

namespace simplescale {

/// begins: called before each checkpoint. A checkpoint that the run removes meanwhile is no problem.
/// not_found: there is no `latest`; bad_data: it is no list of checkpoints; io, bad_config, aborted:
/// as ObjectStore. Other errors are in the report.
Result<VerifyReport> verify_bucket(CheckpointBucket& bucket,
                                   const std::function<void(const StoredCheckpoint&)>& begins);
/// The same of s3://BUCKET/PREFIX, as checkpoint.upload names it.
Result<VerifyReport> verify_bucket(const std::string& url,
                                   const std::function<void(const StoredCheckpoint&)>& begins);

}  // namespace simplescale
