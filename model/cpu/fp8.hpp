// Rounding to 8-bit floating point (fp8, arXiv 2209.05433), of the factors of matrix products with
// BackendOptions::fp8. CPUs have no products of fp8; this is what a product of fp8 tensor cores
// gives: each block of a factor is multiplied with a power of two, rounded to fp8, and divided by
// that power again, which is exact in bf16 and fp32. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "model/cpu/element.hpp"
#include "model/fp8.hpp"

namespace simplescale::cpu {

/// The nearest value of the format, ties to even. What is too large becomes NaN in e4m3 and infinite
/// in e5m2, as in torch.
float to_fp8(Fp8 format, float value);

/// Which values of a matrix share a scale.
enum class Fp8Blocks {
  row,     // 1 x 128: of a factor whose columns are summed over
  column,  // 128 x 1: of a factor whose rows are summed over
  square,  // 128 x 128: of weights, so that both passes multiply with the same values
};

/// to = from, rounded with a block's scale (fp8_scale_exponent()). from: (rows, columns), rows ld
/// apart; to: (rows, columns) contiguous, may be from. Blocks begin at the first row and column.
template <class T>
void round_to_fp8(Fp8 format, Fp8Blocks blocks, int64_t rows, int64_t columns, const T* from,
                  int64_t ld, T* to);

}  // namespace simplescale::cpu
