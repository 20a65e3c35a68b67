// Factors of products in fp8 (arXiv 2209.05433). A block of 8 warps rounds a tile of 128 x 128
// values, which it reads once, also if the matrix and its transpose are wanted. Shapes: kernels.hpp.
#include <cuda_fp8.h>

#include "model/cuda/device.cuh"

namespace simplescale::cuda {
namespace {

constexpr int kSide = static_cast<int>(kFp8Block), kWarps = 8, kRowsOfWarp = kSide / kWarps;
constexpr int kAtATime = 8;  // rows that a warp loads at once

/// The tile in shared memory holds words of 4 bytes: a lane writes those of 4 neighbours in a row, and
/// reads those of 4 neighbours in a column. With this pitch, and rows and words at spread(), neither
/// costs bank conflicts.
template <class T>
constexpr int kPerWord = 4 / sizeof(T);  // neighbours in a row
template <class T>
constexpr int kPitch = kSide / kPerWord<T> + 1;
/// i: below 32 n.
__device__ inline int spread(int i, int n) {
  return i % n * 32 + i / n;
}
/// Four neighbours in a row as words. from: aligned to them.
__device__ inline void load_words(const float* from, uint32_t (&to)[4]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ inline void load_words(const Bf16* from, uint32_t (&to)[2]) {
  const uint2 v = *reinterpret_cast<const uint2*>(from);
  to[0] = v.x, to[1] = v.y;
}
/// Element k of a word.
template <class T>
__device__ float element_of(uint32_t word, int k) {
  return __uint_as_float(kPerWord<T> == 1 ? word : k == 0 ? word << 16 : word & 0xffff0000u);
}
template <class T>
__device__ void elements_of(const uint32_t (&words)[4 / kPerWord<T>], float (&v)[4]) {
  for (int k = 0; k < 4; ++k) v[k] = element_of<T>(words[k / kPerWord<T>], k % kPerWord<T>);
}

/// 0 for NaNs.
__device__ inline float largest_of(const float (&v)[4]) {
  return fmaxf(fmaxf(fmaxf(0, fabsf(v[0])), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
}
/// The warp's largest v. No lane's v is negative: so the bits have the order of the numbers.
__device__ inline float warp_max(float v) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
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

/// The scale of a block of values.
template <Fp8 kFormat>
struct Scale {
  int exponent;
  bool finite;  // each value is finite or NaN
  __device__ float of_block() const { return power_of_two(-exponent); }
  /// Four values as bytes. Of infinity the conversion would make the largest number.
  __device__ uint32_t rounded(const float (&v)[4]) const {
    constexpr __nv_fp8_interpretation_t kKind = kFormat == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
    const float up = power_of_two(exponent);
    float scaled[4];
    for (int k = 0; k < 4; ++k)
      scaled[k] = finite || v[k] - v[k] == 0 ? v[k] * up : __uint_as_float(0x7fffffffu);
    const auto pair = [&](int k) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(scaled[k], scaled[k + 1]), __NV_SATFINITE, kKind);
    };
    return pair(0) | pair(2) << 16;
  }
};
/// Of values of which this is the largest magnitude.
template <Fp8 kFormat>
__device__ Scale<kFormat> scale_for(float largest) {
  return {fp8_scale_exponent(kFormat, __float_as_uint(largest)), largest - largest == 0};
}

__device__ inline void store4(uint8_t* to, uint32_t values) {
  *reinterpret_cast<uint32_t*>(to) = values;
}

/// Block (x, y): tile y of the columns of row tile x.
template <class T, Fp8Kind kKind>
__global__ void __launch_bounds__(kWarps * 32, kPerWord<T> == 2 ? 4 : 2)
    to_fp8_kernel(int64_t rows, int64_t columns, const T* x, Fp8Values straight, Fp8Values turned) {
  constexpr Fp8 kFormat = fp8_format(kKind);
  constexpr bool kSquare = fp8_square(kKind);
  constexpr int kWords = 4 / kPerWord<T>;  // of 4 neighbours
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t top = static_cast<int64_t>(blockIdx.x) * kSide,
                left = static_cast<int64_t>(blockIdx.y) * kSide;
  const int first = warp * kRowsOfWarp;  // the warp's first row of the tile, then its first column
  const int64_t column = left + 4 * lane;
  auto* const tile = reinterpret_cast<uint32_t*>(dynamic_shared());
  const auto in_tile = [&](int i, int j) -> uint32_t& {
    return tile[spread(first + i, 4) * kPitch<T> + spread(kWords * lane + j, kWords)];
  };
  Scale<kFormat> of_tile = scale_for<kFormat>(0);
  const auto scale_of = [&](const float(&v)[4]) {
    return kSquare ? of_tile : scale_for<kFormat>(warp_max(largest_of(v)));
  };
  const auto store_straight = [&](int i, const float(&v)[4]) {
    const int64_t row = top + first + i;
    const Scale<kFormat> scale = scale_of(v);
    if (row >= rows) return;
    if (column < columns) store4(straight.values + row * columns + column, scale.rounded(v));
    if (!kSquare && lane == 0)
      straight.scales[fp8_scale_index(false, rows, columns, row, left)] = scale.of_block();
  };

  float largest = 0;
  for (int begin = 0; begin < kRowsOfWarp; begin += kAtATime) {
    uint32_t words[kAtATime][kWords] = {};  // 4 neighbours in each row
#pragma unroll
    for (int i = 0; i < kAtATime; ++i)
      if (top + first + begin + i < rows && column < columns)
        load_words(x + (top + first + begin + i) * columns + column, words[i]);
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      float v[4];
      elements_of<T>(words[i], v);
      if (kSquare)
        largest = fmaxf(largest, largest_of(v));
      else if (straight.values)
        store_straight(begin + i, v);
      if (kSquare || turned.values)
        for (int j = 0; j < kWords; ++j) in_tile(begin + i, j) = words[i][j];
    }
  }
  if (kSquare) {
    of_tile = scale_for<kFormat>(block_max(largest));
    if (threadIdx.x == 0 && straight.values)
      straight.scales[fp8_scale_index(true, rows, columns, top, left)] = of_tile.of_block();
    if (threadIdx.x == 0 && turned.values)
      turned.scales[fp8_scale_index(true, columns, rows, left, top)] = of_tile.of_block();
    for (int i = 0; straight.values && i < kRowsOfWarp; ++i) {
      uint32_t words[kWords];
      for (int j = 0; j < kWords; ++j) words[j] = in_tile(i, j);
      float v[4];
      elements_of<T>(words, v);
      store_straight(i, v);
    }
  }

  if (!turned.values) return;
  __syncthreads();
  const int64_t row = top + 4 * lane;
#pragma unroll 2
  for (int i = 0; i < kRowsOfWarp; i += kPerWord<T>) {
    uint32_t of_rows[4];  // of kPerWord columns
    for (int k = 0; k < 4; ++k)
      of_rows[k] =
          tile[spread(4 * lane + k, 4) * kPitch<T> + spread((first + i) / kPerWord<T>, kWords)];
    for (int j = 0; j < kPerWord<T>; ++j) {
      float v[4];
      for (int k = 0; k < 4; ++k) v[k] = element_of<T>(of_rows[k], j);
      const Scale<kFormat> scale = scale_of(v);
      const int64_t of_row = left + first + i + j;  // of the transpose
      if (of_row >= columns) continue;
      if (row < rows) store4(turned.values + of_row * rows + row, scale.rounded(v));
      if (!kSquare && lane == 0)
        turned.scales[fp8_scale_index(false, columns, rows, of_row, top)] = scale.of_block();
    }
  }
}

}  // namespace

template <class T>
cudaError_t to_fp8(cudaStream_t stream, Fp8Kind kind, int64_t rows, int64_t columns, const T* x,
                   const Fp8Values& straight, const Fp8Values& turned) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 tiles(blocks_for(rows, kSide), blocks_for(columns, kSide));
  const size_t shared =
      turned.values || fp8_square(kind) ? sizeof(uint32_t) * kSide * kPitch<T> : 0;
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
