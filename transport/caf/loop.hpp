// The event loop of the transport thread. It progresses the messenger, runs the tasks that other
// threads post, runs CAF actors that a network message woke up, and keeps timers. It polls for a
// short time if polling has been useful recently (SpinPolicy), else it sleeps on the messenger's
// event descriptor. Knows nothing of peers and messages.
//
// Order of posting: tasks run in the order in which they were posted. Before this thread sends
// anything itself, it runs the tasks posted so far (flush()). So the messages of an actor that
// moves between threads stay in order (ACTOR-1).
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

#include "transport/stream/messenger.hpp"

namespace caf {
class actor_system;
}

namespace simplescale::remote {

using Task = kj::Function<void()>;
using Clock = std::chrono::steady_clock;

/// Decides whether to poll for another message or to sleep. Takes the time as an argument.
class SpinPolicy {
 public:
  explicit SpinPolicy(std::chrono::nanoseconds budget) : budget_(budget) {}
  /// A poll found work.
  void hit(Clock::time_point now) {
    if (spinning_ && score_ < kMax) ++score_;
    spinning_ = false;
    last_ = now;
  }
  /// A poll found no work. True: poll again; false: sleep.
  bool poll_again(Clock::time_point now);
  /// Call after sleeping: the time asleep does not count as polling.
  void woke(Clock::time_point now) {
    spinning_ = false;
    last_ = now;
  }

 private:
  static constexpr int kMax = 16;
  static constexpr int kProbe = 64;  // at score 0, it polls before one of kProbe sleeps
  std::chrono::nanoseconds budget_;
  Clock::time_point last_{};
  int score_ = kMax / 2;
  int skipped_ = 0;
  bool spinning_ = false;
};

/// A CAF execution unit: actors that this thread wakes up run on it.
class Loop : public caf::execution_unit {
 public:
  Loop(caf::actor_system& system, std::chrono::nanoseconds spin);

  // ---- any thread ----
  /// False if the loop has ended: the task never runs.
  bool post(Task task);
  bool on_this_thread() const;

  // ---- this thread ----
  /// Runs until quit(), then runs the tasks that are still posted.
  void run(stream::Messenger& messenger);
  void quit() { quit_ = true; }
  /// Runs the tasks posted so far. False if called from a posted task: to keep the order of
  /// posting, the caller must then post its own task.
  bool flush();
  /// Runs the task once, at `when` or soon after.
  void call_at(Clock::time_point when, Task task);
  /// Runs the task once, soon after `fd` becomes readable, unless forget(fd) comes first. The
  /// caller keeps the fd open. A busy loop may be late, because it checks only when it has nothing
  /// else to do.
  void when_readable(int fd, Task task);
  void forget(int fd) { readable_.erase(fd); }
  void exec_later(caf::resumable* job) override;

 private:
  bool run_posted();
  bool run_jobs();
  bool run_timers(Clock::time_point now);
  void sleep();

  SpinPolicy spin_;
  stream::Messenger* messenger_ = nullptr;
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
