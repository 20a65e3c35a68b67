#include "model/cpu/thread_pool.hpp"

#include <pthread.h>

#include <string>

#include "runtime/base/status.hpp"

namespace simplescale::cpu {
namespace {

// Bits of state_: workers may enter the current run, workers must exit, workers inside the run.
constexpr uint32_t kOpen = 0x8000, kStop = 0x4000, kActive = 0x3fff;
constexpr int kSpins = 1000;  // about 50 ns each

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(threads), runs_(std::make_unique<Run[]>(static_cast<size_t>(threads))) {
  SS_ASSERT(threads >= 1 && threads < int(kActive));
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back([this, worker] { worker_main(worker); });
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t tasks, Call call, void* body) {
  if (threads_ == 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) call(body, task, 0);
    return;
  }
  call_ = call;
  body_ = body;
  for (int w = 0; w < threads_; ++w) {
    runs_[w].next.store(tasks * w / threads_, std::memory_order_relaxed);
    runs_[w].end = tasks * (w + 1) / threads_;
  }
  const uint32_t generation = (state_.load(std::memory_order_relaxed) >> 16) + 1;
  state_.store(generation << 16 | kOpen, std::memory_order_release);
  state_.notify_all();
  work(0);
  // All tasks are taken: closes the run to further workers, and waits for those inside.
  uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (int spin = 0; state & kActive; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      state_.wait(state, std::memory_order_acquire);
    }
    state = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int worker) {
  for (int i = 0; i < threads_; ++i) {
    Run& run = runs_[(worker + i) % threads_];
    for (;;) {
      const int64_t task = run.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= run.end) break;
      call_(body_, task, worker);
    }
  }
}

void ThreadPool::worker_main(int worker) {
  pthread_setname_np(pthread_self(), ("compute-" + std::to_string(worker)).c_str());
  uint32_t last = ~0u;
  int spin = 0;
  for (;;) {
    uint32_t state = state_.load(std::memory_order_acquire);
    if (state & kStop) return;
    if ((state & kOpen) && state >> 16 != last) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      last = state >> 16;
      work(worker);
      const uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
      if (!(before & kOpen)) state_.notify_all();
      spin = 0;
    } else if (++spin < kSpins) {
      relax();
    } else {
      state_.wait(state, std::memory_order_acquire);
      spin = 0;
    }
  }
}

}  // namespace simplescale::cpu
