// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): a
// generator whose state is a counter. The same numbers on every machine; not for cryptography.
// Pure functions, any thread.
#pragma once

#include <cstdint>

namespace simplescale {

/// 2^64 / golden ratio, odd: the distance between two states of the generator.
inline constexpr uint64_t splitmix64_increment = 0x9e3779b97f4a7c15u;

/// The output function: from a state to a number. A bijection; 0 stays 0.
constexpr uint64_t splitmix64_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The n-th number, n = 0, 1, ..., of the generator seeded with `seed`.
constexpr uint64_t splitmix64_at(uint64_t seed, uint64_t n) {
  return splitmix64_mix(seed + (n + 1) * splitmix64_increment);
}

}  // namespace simplescale
