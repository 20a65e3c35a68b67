// How our kernels are started, in one place: the tests run the same kernels on a CPU by putting
// loops here instead (tests/gpu/emulation.hpp, which is included before and defines the same
// names).
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace simplescale {

struct GpuGrid {
  cudaStream_t stream;
  dim3 blocks, threads;
  size_t shared = 0;  // bytes of dynamic_shared() a block
};

/// kernel<<<...>>>(arguments...); returns what the launch said.
template <class... Parameter, class... Argument>
cudaError_t gpu_launch(const GpuGrid& grid, void (*kernel)(Parameter...),
                       const Argument&... arguments) {
  if (grid.shared > (size_t{40} << 10)) {  // with a static part, more than a kernel gets unasked
    const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared));
    if (allowed != cudaSuccess) return allowed;
  }
  kernel<<<grid.blocks, grid.threads, grid.shared, grid.stream>>>(arguments...);
  return cudaGetLastError();
}

/// The block's shared memory whose size the launch gave.
__device__ inline float* dynamic_shared() {
  extern __shared__ float simplescale_shared[];
  return simplescale_shared;
}

}  // namespace simplescale

#endif
