// The checks of `doctor` on the buckets that a configuration names. Blocks on the network for at
// most half a minute a bucket; writes and removes one small object below checkpoint.upload.
#pragma once

#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/diagnostics/diagnose.hpp"

namespace simplescale {

/// A check of each source in a bucket (credentials, list, read) and of checkpoint.upload
/// (credentials, list, conditional puts, read, remove). `detail` shows no secret.
std::vector<CheckResult> check_buckets(const Config& config);

}  // namespace simplescale
