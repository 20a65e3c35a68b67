// The first communicator of a process on a GPU takes long: NCCL looks for networks and GPUs and
// loads its kernels (0.8 s on an H200; a later communicator takes 30 ms). So this creates one
// before it is needed.
#pragma once

#include <future>

#include "runtime/base/status.hpp"

namespace simplescale::nccl {

/// Starts to create a communicator of this process alone on a GPU, which has a context, and to end
/// it. The future is ready when that is done; unavailable, with the reason: NCCL fails, or is not
/// done after timeout_ms. Runs on a detached thread, because some of NCCL's calls have no deadline:
/// the future may never be ready. Any thread.
std::shared_future<Status> prepare(int device_index, int timeout_ms);

}  // namespace simplescale::nccl
