// Copies between large buffers.
#pragma once

#include <cstddef>

namespace simplescale::collective {

/// memcpy. past_cache: what is written is more than the cache can keep anyway; then it is written
/// around it where the processor can, which saves reading the destination first.
void copy_bytes(void* to, const void* from, size_t bytes, bool past_cache);

/// From how many bytes of one operation on `past_cache` pays (measured: twice as fast at 64 MiB,
/// a fifth slower at 16 MiB).
constexpr size_t kPastCacheBytes = size_t{24} << 20;

}  // namespace simplescale::collective
