// A fixed set of threads that share the tasks of one call. The compute thread owns the pool and
// calls it; the compute thread works as worker 0.
//
// Each worker starts with its own contiguous run of tasks, so that successive calls over the same
// rows find them in the same core's cache, and then takes tasks from the other workers' runs.
// Results must not depend on which worker runs a task (BACKEND-1). run() does not wait for a worker
// that wakes up after all tasks are taken. An idle worker spins for about 50 us, then sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace simplescale::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(task, worker) once for each task in [0, tasks) and returns when all are done;
  /// worker < threads(), and no two tasks run at the same time with the same worker. The body must
  /// not throw nor call run().
  template <class Body>
  void run(int64_t tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        tasks, [](void* b, int64_t task, int worker) { (*static_cast<Plain*>(b))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* body, int64_t task, int worker);
  struct alignas(64) Run {  // the tasks [next, end)
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void run_erased(int64_t tasks, Call call, void* body);
  void work(int worker);
  void worker_main(int worker);

  const int threads_;
  std::unique_ptr<Run[]> runs_;  // per worker
  Call call_ = nullptr;
  void* body_ = nullptr;
  // generation << 16 | kOpen | kStop | number of workers, without the caller, inside work().
  alignas(64) std::atomic<uint32_t> state_{0};
  std::vector<std::thread> workers_;
};

}  // namespace simplescale::cpu
