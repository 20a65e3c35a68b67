// Turns a failed CUDA call into an exception. After most errors the context is unusable, so the
// process ends and its node starts another. make_backend() catches it and returns a Status.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace simplescale::cuda {

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return;
  throw CudaError(std::string(file) + ":" + std::to_string(line) + ": " + expression + ": " +
                  cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Throws CudaError with expression, file and line unless the call succeeded.
#define SS_CUDA(expression) \
  ::simplescale::cuda::check((expression), #expression, __FILE__, __LINE__)

}  // namespace simplescale::cuda
