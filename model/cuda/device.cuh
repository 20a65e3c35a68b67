// Common parts of this folder's kernels: element access with rounding, and sums over a block.
#pragma once

#include <cuda_bf16.h>

#include "model/cuda/kernels.hpp"
#include "runtime/training/gpu_launch.cuh"

namespace simplescale::cuda {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(Bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
template <class T>
__device__ T rounded(float x);
template <>
__device__ inline float rounded<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 rounded<Bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

/// Access policy: one element at a time, any size and any alignment.
template <class T>
struct Single {
  static constexpr int n = 1;
  __device__ static void load(const T* from, float (&to)[1]) { to[0] = to_float(*from); }
  __device__ static void store(T* to, const float (&from)[1]) { *to = rounded<T>(from[0]); }
};

/// Access policy: 16 bytes (n elements) at a time, aligned to 16 bytes.
template <class T>
struct Packed;
template <>
struct Packed<float> {
  static constexpr int n = 4;
  __device__ static void load(const float* from, float (&to)[4]) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  __device__ static void unpack(uint4 v, float (&to)[4]) {
    to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y);
    to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
  }
  __device__ static void store(float* to, const float (&from)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  }
};
template <>
struct Packed<Bf16> {
  static constexpr int n = 8;
  __device__ static void load(const Bf16* from, float (&to)[8]) {
    unpack(*reinterpret_cast<const uint4*>(from), to);
  }
  __device__ static void unpack(uint4 v, float (&to)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) {  // little endian: the low half comes first
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  __device__ static void store(Bf16* to, const float (&from)[8]) {
    uint32_t words[4];
    for (int i = 0; i < 4; ++i)
      words[i] = rounded<Bf16>(from[2 * i]).bits |
                 static_cast<uint32_t>(rounded<Bf16>(from[2 * i + 1]).bits) << 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

/// Loads n elements. from: aligned to n of them, at most to 16 bytes.
template <int n>
__device__ void load_elements(const float* from, float (&to)[n]) {
  if constexpr (n == 1) {
    to[0] = *from;
  } else {
    for (int i = 0; i < n; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  }
}
template <int n>
__device__ void load_elements(const Bf16* from, float (&to)[n]) {
  if constexpr (n == 1) {
    to[0] = to_float(*from);
  } else {
    static_assert(n == 4);
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    to[0] = __uint_as_float(v.x << 16), to[1] = __uint_as_float(v.x & 0xffff0000u);
    to[2] = __uint_as_float(v.y << 16), to[3] = __uint_as_float(v.y & 0xffff0000u);
  }
}

/// Stores n elements of a moment, in bf16 rounded stochastically. first: rounding_bits() of element
/// k is that of rounding.element + first + k. shift: of the moment's 16 bits. to: aligned to n
/// elements.
template <int n>
__device__ void store_moments(float* to, const float (&from)[n], const Rounding&, int64_t, int) {
  if constexpr (n == 1)
    *to = from[0];
  else
    Packed<float>::store(to, from);
}
template <int n>
__device__ void store_moments(Bf16* to, const float (&from)[n], const Rounding& rounding,
                              int64_t first, int shift) {
  uint32_t bits[n];
  for (int k = 0; k < n; ++k) {
    const uint64_t element = rounding.element + static_cast<uint64_t>(first + k);
    const uint32_t random = rounding_bits(rounding.key, element) >> shift & 0xffffu;
    bits[k] = stochastic_bf16(__float_as_uint(from[k]), random);
  }
  if constexpr (n == 1) {
    to->bits = static_cast<uint16_t>(bits[0]);
  } else {
    static_assert(n == 4);
    *reinterpret_cast<uint2*>(to) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
  }
}

/// Stores n elements, rounded to nearest even. to: aligned to n elements.
template <int n>
__device__ void store_rounded(Bf16* to, const float (&from)[n]) {
  if constexpr (n == 1) {
    *to = rounded<Bf16>(from[0]);
  } else {
    static_assert(n == 4);
    const auto pair = [&](int i) {
      return rounded<Bf16>(from[i]).bits | static_cast<uint32_t>(rounded<Bf16>(from[i + 1]).bits)
                                               << 16;
    };
    *reinterpret_cast<uint2*>(to) = make_uint2(pair(0), pair(2));
  }
}

/// Sums v.x and v.y over the block's threads; every thread gets the same bits. All threads must
/// call it. blockDim.x: a multiple of 32.
__device__ inline float2 block_sum(float2 v) {
  __shared__ float2 of_warp[32];
  for (int mask = 16; mask > 0; mask /= 2) {
    v.x += __shfl_xor_sync(0xffffffffu, v.x, mask);
    v.y += __shfl_xor_sync(0xffffffffu, v.y, mask);
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) of_warp[warp] = v;
  __syncthreads();
  v = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : make_float2(0, 0);
  for (int mask = 16; mask > 0; mask /= 2) {
    v.x += __shfl_xor_sync(0xffffffffu, v.x, mask);
    v.y += __shfl_xor_sync(0xffffffffu, v.y, mask);
  }
  __syncthreads();  // all threads have read of_warp: the next call may write it
  return v;
}

/// True if rows of `length` elements that begin at these pointers can be accessed by Packed<T>.
template <class T, class... Pointer>
bool packable(int64_t length, const Pointer*... pointer) {
  return length % Packed<T>::n == 0 && ((reinterpret_cast<uintptr_t>(pointer) % 16 == 0) && ...);
}

/// True if moments that begin at these pointers can be accessed four at a time.
template <class M, class... Pointer>
bool moments_aligned(const Pointer*... pointer) {
  return ((reinterpret_cast<uintptr_t>(pointer) % (4 * sizeof(M)) == 0) && ...);
}

/// Threads for a block that traverses a row of `length` elements, n at a time: a multiple of 32.
inline unsigned threads_for(int64_t length, int n, int64_t threads_max) {
  int64_t threads = (length / n + 31) / 32 * 32;
  if (threads < 32) threads = 32;
  return static_cast<unsigned>(threads < threads_max ? threads : threads_max);
}

/// Number of blocks of `threads` threads that gives each of `count` items a thread.
inline unsigned blocks_for(int64_t count, int64_t threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}
constexpr unsigned kThreads = 256;

/// This thread's item in a grid of blocks_for() blocks.
__device__ inline int64_t item_of_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace simplescale::cuda
