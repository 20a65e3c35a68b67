// Factors of products in fp8 (arXiv 2209.05433). A block of 8 warps rounds a tile of 128 x 128
// values, which it reads once, also if the matrix and its transpose are wanted. Shapes: kernels.hpp.
#include <cuda_fp8.h>

#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

constexpr int kSide = static_cast<int>(kFp8Block), kWarps = 8, kRowsOfWarp = kSide / kWarps;
// In shared memory: with this pitch, and rows and columns at spread(), neither the 4 neighbours in a
// row that a lane writes nor the 4 neighbours in a column that it reads cost bank conflicts.
constexpr int kPitch = kSide + 1;
__device__ inline int spread(int i) {
  return i % 4 * 32 + i / 4;
}

__device__ inline float largest_of(const float (&v)[4]) {
  return fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
}
__device__ inline float warp_max(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
  return v;
}
/// All threads of the block must call it, once.
__device__ inline float block_max(float v) {
  __shared__ float of_warp[kWarps];
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  for (const float other : of_warp) v = fmaxf(v, other);
  return v;
}

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

/// v * 2^exponent as four bytes. Of infinity the conversion would make the largest number.
template <Fp8 kFormat>
__device__ uint32_t rounded4(int exponent, const float (&v)[4]) {
  constexpr __nv_fp8_interpretation_t kKind = kFormat == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const float scale = power_of_two(exponent);
  float scaled[4];
  for (int k = 0; k < 4; ++k)
    scaled[k] = v[k] - v[k] == 0 ? v[k] * scale : __uint_as_float(0x7fffffffu);
  const auto pair = [&](int k) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(scaled[k], scaled[k + 1]), __NV_SATFINITE, kKind);
  };
  return pair(0) | pair(2) << 16;
}

__device__ inline void store4(uint8_t* to, uint32_t values) {
  *reinterpret_cast<uint32_t*>(to) = values;
}

/// Block (x, y): tile y of the columns of row tile x.
template <class T, Fp8Kind kKind>
__global__ void __launch_bounds__(kWarps * 32)
    to_fp8_kernel(int64_t rows, int64_t columns, const T* x, Fp8Values straight, Fp8Values turned) {
  constexpr Fp8 kFormat = fp8_format(kKind);
  constexpr bool kSquare = fp8_square(kKind);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t top = static_cast<int64_t>(blockIdx.x) * kSide,
                left = static_cast<int64_t>(blockIdx.y) * kSide;
  const int first = warp * kRowsOfWarp;  // the warp's first row of the tile, then its first column
  const int64_t column = left + 4 * lane;
  float v[kRowsOfWarp][4] = {};  // 4 neighbours in each of the warp's rows
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    if (top + first + i < rows && column < columns)
      load_elements<4>(x + (top + first + i) * columns + column, v[i]);

  int of_tile = 0;
  if (kSquare) {
    float largest = 0;
    for (int i = 0; i < kRowsOfWarp; ++i) largest = fmaxf(largest, largest_of(v[i]));
    of_tile = fp8_scale_exponent(kFormat, __float_as_uint(block_max(largest)));
    if (threadIdx.x == 0 && straight.values)
      straight.scales[fp8_scale_index(true, rows, columns, top, left)] = power_of_two(-of_tile);
    if (threadIdx.x == 0 && turned.values)
      turned.scales[fp8_scale_index(true, columns, rows, left, top)] = power_of_two(-of_tile);
  }
  const auto exponent_of = [&](const float(&of)[4]) {
    return kSquare ? of_tile
                   : fp8_scale_exponent(kFormat, __float_as_uint(warp_max(largest_of(of))));
  };

  if (straight.values)
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int64_t row = top + first + i;
      const int exponent = exponent_of(v[i]);
      if (row >= rows) continue;
      if (column < columns)
        store4(straight.values + row * columns + column, rounded4<kFormat>(exponent, v[i]));
      if (!kSquare && lane == 0)
        straight.scales[fp8_scale_index(false, rows, columns, row, left)] = power_of_two(-exponent);
    }

  if (!turned.values) return;
  float* const tile = dynamic_shared();
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    for (int k = 0; k < 4; ++k) tile[spread(first + i) * kPitch + spread(4 * lane + k)] = v[i][k];
  __syncthreads();
  const int64_t row = top + 4 * lane;
  for (int i = 0; i < kRowsOfWarp; ++i) {
    float w[4];
    for (int k = 0; k < 4; ++k) w[k] = tile[spread(4 * lane + k) * kPitch + spread(first + i)];
    const int exponent = exponent_of(w);
    const int64_t of_row = left + first + i;  // of the transpose
    if (of_row >= columns) continue;
    if (row < rows) store4(turned.values + of_row * rows + row, rounded4<kFormat>(exponent, w));
    if (!kSquare && lane == 0)
      turned.scales[fp8_scale_index(false, columns, rows, of_row, top)] = power_of_two(-exponent);
  }
}

}  // namespace

template <class T>
cudaError_t to_fp8(cudaStream_t stream, Fp8Kind kind, int64_t rows, int64_t columns, const T* x,
                   const Fp8Values& straight, const Fp8Values& turned) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 tiles(blocks_for(rows, kSide), blocks_for(columns, kSide));
  const size_t shared = turned.values ? sizeof(float) * kSide * kPitch : 0;
  const auto kernel = kind == Fp8Kind::activation ? to_fp8_kernel<T, Fp8Kind::activation>
                      : kind == Fp8Kind::weight   ? to_fp8_kernel<T, Fp8Kind::weight>
                                                  : to_fp8_kernel<T, Fp8Kind::gradient>;
  return gpu_launch({stream, tiles, kWarps * 32, shared}, kernel, rows, columns, x, straight,
                    turned);
}

#define SS_INSTANTIATE(T)                                                                          \
  template cudaError_t to_fp8(cudaStream_t, Fp8Kind, int64_t, int64_t, const T*, const Fp8Values&, \
                              const Fp8Values&);
SS_INSTANTIATE(float)
SS_INSTANTIATE(Bf16)

}  // namespace simplescale::cuda
