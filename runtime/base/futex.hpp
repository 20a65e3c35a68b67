// Sleeps on a 32-bit word, which may lie in memory shared between processes. Nothing spins.
//
// A waiter reads the word, checks the condition it waits for, and calls futex_wait() with the value
// it read: that sleeps only if the word has not changed since. A thread that changes the condition
// calls futex_bump() afterwards. Any thread.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>

namespace simplescale {

using TimePoint = std::chrono::steady_clock::time_point;

/// Sleeps while word == seen, until futex_bump(), a signal or the deadline. False: the deadline has
/// passed.
inline bool futex_wait(std::atomic<uint32_t>& word, uint32_t seen, TimePoint deadline) {
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
  const timespec until{static_cast<time_t>(ns / 1'000'000'000),
                       static_cast<long>(ns % 1'000'000'000)};
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, the clock of steady_clock.
  const long result =
      syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 || errno != ETIMEDOUT;
}

/// Increments the word and wakes all threads that sleep on it.
inline void futex_bump(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

}  // namespace simplescale
