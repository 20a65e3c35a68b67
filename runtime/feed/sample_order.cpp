#include "runtime/feed/sample_order.hpp"

#include <bit>
#include <utility>

#include "runtime/base/splitmix64.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

namespace {

constexpr int rounds = 8;

}  // namespace

SampleOrder::SampleOrder(uint64_t samples, uint64_t seed, bool shuffle, SkippedSamples skipped)
    : samples_(samples), seed_(seed), shuffle_(shuffle), skipped_(std::move(skipped)) {
  SS_ASSERT(samples > 0 && samples <= uint64_t{1} << 62);
  const int bits = static_cast<int>(std::bit_width(samples - 1));  // samples <= 2^bits
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t SampleOrder::position(uint64_t index) const {
  const uint64_t epoch = index / samples_;
  uint64_t x = index % samples_;
  if (!shuffle_) return x;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const uint64_t key =
      splitmix64_mix(splitmix64_mix(seed_ + splitmix64_increment) ^ (epoch * splitmix64_increment));
  do {  // fewer than four turns on average: the domain is less than four times as large
    uint64_t left = x >> half_bits_, right = x & mask;
    for (int round = 0; round < rounds; ++round) {
      const uint64_t next =
          left ^ (splitmix64_mix(right + key + splitmix64_increment * (round + 1)) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= samples_);
  return x;
}

}  // namespace simplescale
