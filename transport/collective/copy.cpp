#include "transport/collective/copy.hpp"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace simplescale::collective {

namespace {

__attribute__((target("avx"))) void stream(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 128 <= bytes; i += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1),
                  c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace

void copy_bytes(void* to, const void* from, size_t bytes, bool past_cache) {
  static const bool can_stream = __builtin_cpu_supports("avx");
  if (past_cache && can_stream && bytes >= 4096)
    stream(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace simplescale::collective
