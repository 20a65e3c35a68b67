// Work that is cut into independent tasks, done by several threads: hashing, copying and writing of
// large states. The compute thread's own pool is model/cpu/thread_pool.hpp. Any thread; blocks.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Calls body(task) once for each task in [0, tasks), in any order and on any thread; returns when
/// all are done. Null: in order, on the caller's thread.
using Parallel = std::function<void(size_t tasks, const std::function<void(size_t)>& body)>;

/// The caller's thread and up to threads - 1 more, which end with the call. They take the tasks in
/// order.
Parallel on_threads(size_t threads);

/// Cores that work on saves may use, of those on which this process may run: a quarter beside
/// training, all when no trainer computes. At least 1.
size_t cores_beside_training();
size_t all_cores();

void run_tasks(const Parallel& parallel, size_t tasks, const std::function<void(size_t)>& body);
/// Calls body(first, count) for consecutive pieces of [0, total) of at most `piece` elements.
void for_pieces(const Parallel& parallel, size_t total, size_t piece,
                const std::function<void(size_t first, size_t count)>& body);

/// The same for tasks that may fail. After an error no later task begins. Returns the error of the
/// first task, in their order, that has failed.
Status try_tasks(const Parallel& parallel, size_t tasks, const std::function<Status(size_t)>& body);

}  // namespace simplescale
