// Work on host memory that is split into tasks for several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace simplescale {

/// Calls body(task) once for each task in [0, tasks), in any order and on any thread; returns when
/// all are done. The body must not throw.
using Parallel = std::function<void(size_t tasks, const std::function<void(size_t)>& body)>;

/// Runs tasks on the caller's thread and on up to threads - 1 threads that are started for the call
/// only: for work that is rare, such as at the start and the end of a generation.
Parallel parallel_on(int threads);

/// Calls body(first, count) for consecutive pieces of [0, total) of at most `piece` elements. An
/// empty `parallel`: one after the other.
void for_pieces(const Parallel& parallel, size_t total, size_t piece,
                const std::function<void(size_t first, size_t count)>& body);

}  // namespace simplescale
