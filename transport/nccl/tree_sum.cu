// The kernel that runs a TreeProgram (tree_program.hpp): sums in tree order on the device.
#include <cuda_bf16.h>

#include "runtime/training/gpu_launch.cuh"
#include "transport/nccl/tree_program.hpp"

namespace simplescale::nccl {
namespace {

constexpr int kThreads = 128;

/// Loads elements i .. i + n - 1 of a source as fp32.
template <int n>
__device__ void load(const void* source, bool bf16, int64_t i, float (&to)[n]) {
  if constexpr (n == 1) {
    to[0] =
        bf16 ? __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(source)[i]) << 16)
             : static_cast<const float*>(source)[i];
  } else if (bf16) {
    const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(source) + i);
    to[0] = __uint_as_float(v.x << 16), to[1] = __uint_as_float(v.x & 0xffff0000u);
    to[2] = __uint_as_float(v.y << 16), to[3] = __uint_as_float(v.y & 0xffff0000u);
  } else {
    const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(source) + i);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

__device__ uint32_t narrowed(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

template <int n>
__device__ void store(void* sink, bool bf16, int64_t i, const float (&from)[n]) {
  if constexpr (n == 1) {
    if (bf16)
      static_cast<uint16_t*>(sink)[i] = static_cast<uint16_t>(narrowed(from[0]));
    else
      static_cast<float*>(sink)[i] = from[0];
  } else if (bf16) {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(sink) + i) = make_uint2(
        narrowed(from[0]) | narrowed(from[1]) << 16, narrowed(from[2]) | narrowed(from[3]) << 16);
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(sink) + i) =
        make_float4(from[0], from[1], from[2], from[3]);
  }
}

/// Each thread sums n elements, starting at first + n * its index. The top of the stack is in
/// registers; element k of entry e below it is in shared memory, at
/// (e * n + k) * blockDim.x + threadIdx.x.
template <int n>
__global__ void tree_kernel(const __grid_constant__ TreeProgram program, int64_t first,
                            int64_t items) {
  float* stack = dynamic_shared();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= items) return;
  const int64_t i = first + item * n;
  auto entry = [&](int e, int k) -> float& {
    return stack[(e * n + k) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
  };
  float top[n] = {};
  int below = -1;  // entries below the top
  auto merge = [&] {
    --below;
    for (int k = 0; k < n; ++k) top[k] = entry(below, k) + top[k];
  };
  for (int s = 0; s < program.sources; ++s) {
    if (below >= 0)
      for (int k = 0; k < n; ++k) entry(below, k) = top[k];
    ++below;
    load<n>(program.source[s], program.bf16[s] != 0, i, top);
    for (int m = 0; m < program.merges[s]; ++m) merge();
  }
  if (program.total)
    while (below > 0) merge();
  store<n>(program.sink[below], program.narrow_sinks, i, top);
  while (--below >= 0) {
    for (int k = 0; k < n; ++k) top[k] = entry(below, k);
    store<n>(program.sink[below], program.narrow_sinks, i, top);
  }
}

template <int n>
cudaError_t launch(cudaStream_t stream, const TreeProgram& program, int64_t first, int64_t items) {
  if (items == 0) return cudaSuccess;
  const size_t shared = sizeof(float) * n * kThreads * static_cast<size_t>(program.depth);
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  return gpu_launch({stream, blocks, kThreads, shared}, tree_kernel<n>, program, first, items);
}

bool aligned(const void* data, bool bf16) {
  return reinterpret_cast<uintptr_t>(data) % (bf16 ? 8 : 16) == 0;
}

}  // namespace

cudaError_t run_tree_program(cudaStream_t stream, const TreeProgram& program, int64_t count) {
  bool vectors = true;
  for (int s = 0; s < program.sources; ++s)
    vectors = vectors && aligned(program.source[s], program.bf16[s] != 0);
  for (int s = 0; s < program.sinks; ++s)
    vectors = vectors && aligned(program.sink[s], program.narrow_sinks);
  const int64_t packs = vectors ? count / 4 : 0;
  const cudaError_t error = launch<4>(stream, program, 0, packs);
  if (error != cudaSuccess) return error;
  return launch<1>(stream, program, packs * 4, count - packs * 4);
}

}  // namespace simplescale::nccl
