// The transport thread: progresses the UCX worker, runs what other threads post, runs CAF actors
// that a network message woke up, and keeps timers. It spins for a short while only as long as
// spinning pays, and sleeps on the worker's event descriptor otherwise. Knows nothing of peers and
// messages.
//
// L1: what is posted runs in the order of posting, and before anything that this thread does later
// of its own accord
//     (see flush()), so the messages of an actor that moves between threads stay in order.
#pragma once

#include <poll.h>

#include <atomic>
#include <caf/execution_unit.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include <kj/function.h>

#include "transport/ucx/ucx.hpp"

namespace caf {
class actor_system;
}

namespace simplescale::remote {

using Task = kj::Function<void()>;
using Clock = std::chrono::steady_clock;

/// Decides whether to poll for another message or to sleep. Pure; time is told to it.
class SpinPolicy {
 public:
  explicit SpinPolicy(std::chrono::nanoseconds budget) : budget_(budget) {}
  /// Something arrived.
  void hit(Clock::time_point now) {
    if (spinning_ && score_ < kMax) ++score_;
    spinning_ = false;
    last_ = now;
  }
  /// Nothing arrived: poll once more (true) or sleep (false)?
  bool poll_again(Clock::time_point now);
  /// Called after sleeping, so that the time asleep is not taken for spinning.
  void woke(Clock::time_point now) {
    spinning_ = false;
    last_ = now;
  }

 private:
  static constexpr int kMax = 16;
  static constexpr int kProbe =
      64;  // with no score left, one sleep in so many is preceded by a spin
  std::chrono::nanoseconds budget_;
  Clock::time_point last_{};
  int score_ = kMax / 2;
  int skipped_ = 0;
  bool spinning_ = false;
};

/// An execution unit, so that actors woken from this thread run on it.
class Loop : public caf::execution_unit {
 public:
  Loop(caf::actor_system& system, std::chrono::nanoseconds spin);

  // ---- any thread ----
  /// False, and the task is not run, once the loop has ended.
  bool post(Task task);
  bool on_this_thread() const;

  // ---- this thread ----
  /// Runs until quit(), then what is still posted. `after` runs in every round, outside of any
  /// callback.
  void run(ucx::Worker& worker, Task after);
  void quit() { quit_ = true; }
  /// Runs what was posted so far. False if called from something posted: then the caller must post
  /// as well to keep L1.
  bool flush();
  /// Runs the task once, at or soon after `when`.
  void call_at(Clock::time_point when, Task task);
  /// Runs the task once, soon after `fd` is readable, unless forget(fd) came first. The fd stays
  /// the caller's. A busy loop may be late: it looks only when it has nothing else to do.
  void when_readable(int fd, Task task);
  void forget(int fd) { readable_.erase(fd); }
  void exec_later(caf::resumable* job) override;

 private:
  bool run_posted();
  bool run_jobs();
  bool run_timers(Clock::time_point now);
  void sleep();

  SpinPolicy spin_;
  ucx::Worker* worker_ = nullptr;
  bool quit_ = false;
  bool in_posted_ = false;
  std::deque<caf::resumable*> jobs_;
  std::multimap<Clock::time_point, Task> timers_;
  std::map<int, Task> readable_;  // by descriptor
  std::vector<pollfd> polled_;
  std::vector<Task> batch_;

  std::mutex mutex_;
  std::vector<Task> posted_;  // guarded by mutex_
  bool closed_ = false;       // guarded by mutex_
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> asleep_{false};
};

}  // namespace simplescale::remote
