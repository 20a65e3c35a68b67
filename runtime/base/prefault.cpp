#include "runtime/base/prefault.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

namespace simplescale {

Prefault::Prefault(const std::vector<std::span<float>>& ranges, int threads) {
  constexpr size_t kPieceBytes = size_t{16} << 20;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const std::span<float> range : ranges) {
    const auto first = reinterpret_cast<uintptr_t>(range.data());
    for (uintptr_t at = first / page * page, end = first + range.size_bytes(); at < end;
         at += kPieceBytes)
      pieces_.emplace_back(reinterpret_cast<char*>(at), std::min<size_t>(kPieceBytes, end - at));
  }
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    // No more threads are allowed: those that there are do the work.
  }
}

void Prefault::run() {
  for (size_t i; (i = next_++) < pieces_.size();)
    (void)madvise(pieces_[i].data(), pieces_[i].size(), MADV_POPULATE_WRITE);
}

void Prefault::wait() {
  for (std::jthread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace simplescale
