// Which of several ways to compute the same is the fastest on this GPU, by measuring. The compute
// thread makes all calls.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <functional>
#include <span>
#include <string>

namespace simplescale::cuda {

/// Milliseconds of one launch() on `stream`, the mean of `launches`; a first one, which allocates
/// and lets libraries load their kernels, is left out. Throws CudaError.
double milliseconds_of(cudaStream_t stream, int launches, const std::function<void()>& launch);

struct Candidate {
  std::string name;
  std::function<void()> launch;
};
struct Fastest {
  size_t index = 0;  ///< the fastest candidate that works
  std::string told;  ///< of each candidate: how long it takes, or why it fails
};
/// Candidates that take long, and nearly as long as the fastest one, are measured again under load,
/// which takes a fraction of a second for each: there the GPU's power is the limit. A candidate fails
/// if it throws. If the first that would work throws what `may_work_later` is true for, this throws
/// it, too: measure again. If none works, throws the last failure: after many CUDA errors nothing
/// works any more. There is at least one candidate.
Fastest fastest(cudaStream_t stream, std::span<const Candidate> candidates,
                bool (*may_work_later)(const std::exception&));

}  // namespace simplescale::cuda
