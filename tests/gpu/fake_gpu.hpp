// CUDA's streams and NCCL's calls as far as transport/nccl uses them, over host memory and threads:
// links in their place. Streams run beside the host, each on a thread of its own. NCCL is as
// non-blocking as it may be: every call is in progress until it has been asked for several times,
// puts nothing on the stream before that, and refuses another one meanwhile.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace simplescale::fake_gpu {

/// Puts work on a stream, as a kernel.
void run_on(cudaStream_t stream, std::function<void()> work);
/// From now on communicators of this rank say that a peer is lost; -1: nobody's.
void lose_peer_of(int rank);
/// NCCL calls that came while the one before was in progress.
int calls_too_early();

}  // namespace simplescale::fake_gpu
