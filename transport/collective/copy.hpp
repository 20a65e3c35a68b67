// Copies between large buffers.
#pragma once

#include <cstddef>

namespace simplescale::collective {

/// Copies like memcpy. past_cache: use streaming stores (AVX), which bypass the cache and save
/// reading the destination first; for results larger than the cache.
void copy_bytes(void* to, const void* from, size_t bytes, bool past_cache);

/// An operation that writes at least this many bytes uses `past_cache` (measured: twice as fast at
/// 64 MiB, a fifth slower at 16 MiB).
constexpr size_t kPastCacheBytes = size_t{24} << 20;

}  // namespace simplescale::collective
