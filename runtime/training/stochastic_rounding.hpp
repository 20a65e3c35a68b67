// Stochastic rounding to bf16, for moments that a state stores in bf16 (train.moments_precision).
//
// A value becomes one of its two neighbours in bf16, the nearer one with the larger probability, so
// that the mean of the results is the value. Rounding to nearest would lose every change smaller
// than half a unit in the last place: with beta2 near 1, the second moment would not change any
// more. Gupta et al. 2015 (arXiv 1502.02551); for optimizer states Zamirai et al. 2020 (arXiv
// 2010.06192).
//
// The random bits are a function of seed, step, element of the model, and moment. So they are the
// same on every layout and backend, and when a step is made again (ENGINE-3). Pure functions, any
// thread; for host and device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SS_HOST_DEVICE __host__ __device__
#else
#define SS_HOST_DEVICE
#endif

namespace simplescale {

/// The part of the random bits' key that all elements of an update share.
struct RoundingKey {
  uint32_t low = 0, high = 0;
};

/// A step of SplitMix64 (Steele et al. 2014).
constexpr uint64_t mix_bits64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The keys of different seeds or steps are unrelated.
constexpr RoundingKey rounding_key(uint64_t seed, uint64_t step) {
  const uint64_t key = mix_bits64(mix_bits64(seed) ^ step);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

/// MurmurHash3's finalizer (A. Appleby): each bit of x changes each bit of the result with
/// probability 1/2.
SS_HOST_DEVICE constexpr uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

/// The random bits of an element, of ParameterRun::element: the lower 16 are for exp_avg, the upper
/// 16 for exp_avg_sq.
SS_HOST_DEVICE constexpr uint32_t rounding_bits(const RoundingKey& key, uint64_t element) {
  const uint32_t low = mix_bits(static_cast<uint32_t>(element) ^ key.low);
  return mix_bits(low ^ static_cast<uint32_t>(element >> 32) ^ key.high);
}

/// Rounds the fp32 of these bits to bf16: rounds its magnitude up with the probability `bits` mod
/// 2^16 / 2^16. random: uniform in [0, 2^16). bf16 values and infinities do not change; NaN stays
/// NaN.
SS_HOST_DEVICE constexpr uint16_t stochastic_bf16(uint32_t bits, uint32_t random) {
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + random) >> 16);
}

}  // namespace simplescale
