#include "runtime/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace simplescale {

Parallel parallel_on(int threads) {
  return [threads](size_t tasks, const std::function<void(size_t)>& body) {
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t task; (task = next++) < tasks;) body(task);
    };
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(tasks, static_cast<size_t>(threads)); ++i)
      others.emplace_back(work);
    work();
  };
}

void for_pieces(const Parallel& parallel, size_t total, size_t piece,
                const std::function<void(size_t, size_t)>& body) {
  const auto one = [&](size_t index) {
    body(index * piece, std::min(piece, total - index * piece));
  };
  const size_t pieces = (total + piece - 1) / piece;
  if (parallel) return parallel(pieces, one);
  for (size_t index = 0; index < pieces; ++index) one(index);
}

}  // namespace simplescale
