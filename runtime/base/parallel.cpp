#include "runtime/base/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/cpu_affinity.hpp"

namespace simplescale {

Parallel on_threads(size_t threads) {
  return [threads](size_t tasks, const std::function<void(size_t)>& body) {
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t task = next++; task < tasks; task = next++) body(task);
    };
    std::vector<std::jthread> others;  // joined at the end
    try {
      while (others.size() + 1 < std::min(threads, tasks)) {
        others.emplace_back(work);
        pthread_setname_np(others.back().native_handle(), "tasks");
      }
    } catch (const std::system_error&) {
      // No more threads are allowed: those that there are do the work.
    }
    work();
  };
}

size_t all_cores() {
  const size_t usable = cpu_mask().size();
  return usable > 0 ? usable : std::max(1u, std::thread::hardware_concurrency());
}

size_t cores_beside_training() {
  return std::max<size_t>(1, all_cores() / 4);
}

void run_tasks(const Parallel& parallel, size_t tasks, const std::function<void(size_t)>& body) {
  if (parallel) return parallel(tasks, body);
  for (size_t task = 0; task < tasks; ++task) body(task);
}

void for_pieces(const Parallel& parallel, size_t total, size_t piece,
                const std::function<void(size_t, size_t)>& body) {
  run_tasks(parallel, (total + piece - 1) / piece,
            [&](size_t index) { body(index * piece, std::min(piece, total - index * piece)); });
}

Status try_tasks(const Parallel& parallel, size_t tasks,
                 const std::function<Status(size_t)>& body) {
  std::mutex mutex;
  std::atomic<size_t> failed = tasks;
  Status error;
  run_tasks(parallel, tasks, [&](size_t task) {
    if (task > failed) return;
    Status status = body(task);
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (task > failed) return;
    failed = task;
    error = std::move(status);
  });
  return error;
}

}  // namespace simplescale
