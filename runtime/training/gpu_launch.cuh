// Launches our CUDA kernels. Tests run the same kernels on a CPU: they first include
// tests/gpu/emulation.hpp, which defines the same names with loops.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace simplescale {

struct GpuGrid {
  cudaStream_t stream;
  dim3 blocks, threads;
  size_t shared = 0;  // bytes of dynamic_shared() per block
};

/// kernel<<<...>>>(arguments...). Returns the error of this launch; ignores an error that an
/// earlier call has left in cudaGetLastError().
template <class... Parameter, class... Argument>
cudaError_t gpu_launch(const GpuGrid& grid, void (*kernel)(Parameter...),
                       const Argument&... arguments) {
  if (grid.shared > (size_t{40} << 10)) {  // with static memory, this exceeds the default limit
    const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared));
    if (allowed != cudaSuccess) return allowed;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared;
  config.stream = grid.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// The block's shared memory; the launch sets its size.
__device__ inline float* dynamic_shared() {
  extern __shared__ float simplescale_shared[];
  return simplescale_shared;
}

}  // namespace simplescale

#endif
