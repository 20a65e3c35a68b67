#include "runtime/base/lifeline.hpp"

#include <pthread.h>

#include <cerrno>
#include <ctime>

namespace simplescale {

namespace {

constexpr long kLookNs = 100'000'000;  // how often a waiting thread checks whether to stop

struct Segment {
  pthread_mutex_t mutex;
  std::atomic<uint32_t> held;  // 1 once the mutex is initialized and locked
};

}  // namespace

Status hold_lifeline(const std::string& name) {
  static SharedMemory memory;  // must stay mapped: the kernel walks a thread's list of held mutexes
  SS_ASSIGN(memory, SharedMemory::create(name, sizeof(Segment)));
  auto* segment = new (memory.data()) Segment{};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  int error = pthread_mutex_init(&segment->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error == 0) error = pthread_mutex_lock(&segment->mutex);
  if (error != 0) return system_error("cannot hold lifeline", name, error);
  segment->held.store(1, std::memory_order_release);
  return {};
}

LifelineWatcher::~LifelineWatcher() {
  stopping_ = true;
  for (auto& watch : watches_) watch->thread.join();
}

Status LifelineWatcher::watch(const std::string& name, std::function<void()> dead) {
  std::erase_if(watches_, [](const std::unique_ptr<Watch>& watch) {
    if (watch->over) watch->thread.join();
    return watch->over.load();
  });
  SS_ASSIGN(SharedMemory memory, SharedMemory::open(name));
  if (memory.bytes() < sizeof(Segment) ||
      static_cast<Segment*>(memory.data())->held.load(std::memory_order_acquire) != 1)
    return Status(Code::not_found, "no process holds lifeline " + name);
  auto watch = std::make_unique<Watch>();
  watch->thread =
      std::thread([this, watch = watch.get(), memory = std::move(memory), dead = std::move(dead)] {
        auto* mutex = &static_cast<Segment*>(memory.data())->mutex;
        int result = ETIMEDOUT;
        while (result == ETIMEDOUT && !stopping_) {
          timespec until{};
          clock_gettime(CLOCK_MONOTONIC, &until);
          until.tv_nsec += kLookNs;
          if (until.tv_nsec >= 1'000'000'000) ++until.tv_sec, until.tv_nsec -= 1'000'000'000;
          result = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
        }
        if (result == EOWNERDEAD) pthread_mutex_consistent(mutex);
        if (result == EOWNERDEAD || result == 0) pthread_mutex_unlock(mutex);
        if (result != ETIMEDOUT && !stopping_) dead();
        watch->over = true;
      });
  watches_.push_back(std::move(watch));
  return {};
}

}  // namespace simplescale
