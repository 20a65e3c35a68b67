#include "runtime/base/hash.hpp"

#include <xxhash.h>
#if defined(__x86_64__)
// Has the functions below choose the CPU's vectors: the same hashes, from cache in half the time.
#include <xxh_x86dispatch.h>
#endif

#include <cinttypes>
#include <cstdio>

#include "runtime/base/status.hpp"

namespace simplescale {

std::string Hash128::hex() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, high, low);
  return text;
}

Hash128 hash128(const void* data, size_t bytes) {
  const XXH128_hash_t h = XXH3_128bits(data, bytes);
  return {h.high64, h.low64};
}

Hasher::Hasher() : state_(XXH3_createState()) {
  SS_ASSERT(state_);
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}
Hasher::~Hasher() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}
void Hasher::update(const void* data, size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}
Hash128 Hasher::digest() const {
  const XXH128_hash_t h = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return {h.high64, h.low64};
}

}  // namespace simplescale
