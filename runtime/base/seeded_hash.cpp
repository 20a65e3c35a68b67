#include "runtime/base/seeded_hash.hpp"

#include <xxhash.h>

#include <random>

namespace simplescale {

namespace {
uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}
}  // namespace

SeededHash::SeededHash() {
  static const uint64_t seed = random_number(), factor = random_number() | 1;
  seed_ = seed, factor_ = factor;
}

size_t SeededHash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed_);
}

}  // namespace simplescale
