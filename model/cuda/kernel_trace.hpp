// What the GPU does, seen by CUPTI through libtorch's profiler: every kernel and copy with its
// stream and times. It is of the process, not of one backend. The compute thread makes all calls.
#pragma once

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale::cuda {

/// Begins to record, unless it was begun already. The first time takes a second. unavailable: CUPTI
/// refuses, for example since another profiler watches this process.
Status start_kernel_trace();
/// Waits for the GPU, ends the recording and writes it to `file` as a Chrome trace, whose times are
/// those of the wall clock. not_found: nothing is recorded; io.
Status write_kernel_trace(const std::string& file);

}  // namespace simplescale::cuda
