#include "runtime/base/prefault.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>

#include "runtime/base/parallel.hpp"

namespace simplescale {

Prefault::Prefault(const std::vector<std::span<float>>& ranges, int threads) {
  constexpr size_t kPieceBytes = size_t{16} << 20;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::vector<std::span<char>> pieces;
  for (const std::span<float> range : ranges) {
    const auto first = reinterpret_cast<uintptr_t>(range.data());
    for (uintptr_t at = first / page * page, end = first + range.size_bytes(); at < end;
         at += kPieceBytes)
      pieces.emplace_back(reinterpret_cast<char*>(at), std::min<size_t>(kPieceBytes, end - at));
  }
  try {
    thread_ = std::jthread([pieces = std::move(pieces), threads](const std::stop_token& stop) {
      on_threads(static_cast<size_t>(threads))(pieces.size(), [&](size_t i) {
        if (!stop.stop_requested())
          (void)madvise(pieces[i].data(), pieces[i].size(), MADV_POPULATE_WRITE);
      });
    });
  } catch (const std::system_error&) {
    // No thread is allowed: each page is entered when it is used.
  }
}

void Prefault::wait() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace simplescale
