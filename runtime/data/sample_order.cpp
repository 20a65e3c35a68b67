#include "runtime/data/sample_order.hpp"

#include <bit>

#include "runtime/base/status.hpp"

namespace simplescale {

namespace {

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr uint64_t golden = 0x9E3779B97F4A7C15u;
constexpr int rounds = 8;

}  // namespace

SampleOrder::SampleOrder(uint64_t samples, uint64_t seed, bool shuffle)
    : samples_(samples), seed_(seed), shuffle_(shuffle) {
  SS_ASSERT(samples > 0 && samples <= uint64_t{1} << 62);
  const int bits = static_cast<int>(std::bit_width(samples - 1));  // samples <= 2^bits
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t SampleOrder::position(uint64_t index) const {
  const uint64_t epoch = index / samples_;
  uint64_t x = index % samples_;
  if (!shuffle_) return x;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const uint64_t key = mix(mix(seed_ + golden) ^ (epoch * golden));
  do {  // fewer than four rounds on average: the domain is less than four times n
    uint64_t left = x >> half_bits_, right = x & mask;
    for (int round = 0; round < rounds; ++round) {
      const uint64_t next = left ^ (mix(right + key + golden * (round + 1)) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= samples_);
  return x;
}

}  // namespace simplescale
