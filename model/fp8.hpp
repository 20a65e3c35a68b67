// The formats of 8-bit floating point (fp8, arXiv 2209.05433) that factors of matrix products have
// with BackendOptions::fp8, and the scale of a block of values. Pure functions for host and device;
// any thread.
#pragma once

#include <cstdint>

#include "runtime/training/arithmetic.hpp"
#include "runtime/training/stochastic_rounding.hpp"

namespace simplescale {

/// e4m3: 3 bits of mantissa, up to 448, no infinity (torch.float8_e4m3fn); for weights and
/// activations. e5m2: 2 bits, up to 57344; for gradients, whose magnitudes differ more.
enum class Fp8 { e4m3, e5m2 };

/// Values that share a scale: 128 along the sum of the product, or 128 x 128.
using arithmetic::kFp8Block;

/// A block's values are multiplied with 2^e before they are rounded, and divided by it after the
/// product. e: the largest with which the block's largest magnitude is a number of the format, at
/// most 126; any if that magnitude is 0 or infinite. bits: of that magnitude in fp32, not NaN.
SS_HOST_DEVICE constexpr int fp8_scale_exponent(Fp8 format, uint32_t bits) {
  // The largest number of both formats is 0.875 * 2^limit.
  const int limit = format == Fp8::e4m3 ? 9 : 16;
  const int exponent =
      static_cast<int>(bits >> 23) - 126;  // the magnitude is [0.5, 1) * 2^exponent
  const int fits = limit - exponent - ((bits & 0x7f'ffff) > 0x60'0000 ? 1 : 0);
  return fits < 126 ? fits : 126;  // 2^-e is a normal number, too
}

}  // namespace simplescale
