#include "transport/caf/loop.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include "runtime/base/log.hpp"

namespace simplescale::remote {
namespace {

thread_local Loop* current_loop = nullptr;

constexpr int kRoundsMax = 16;  // rounds of the messenger before posted tasks and actors run
constexpr size_t kMessagesPerJob = 50;
constexpr auto kJobsBudget = std::chrono::milliseconds(1);
constexpr auto kSlowHandler = std::chrono::milliseconds(200);

}  // namespace

bool SpinPolicy::poll_again(Clock::time_point now) {
  if (!spinning_) {
    if (budget_.count() == 0 || (score_ == 0 && ++skipped_ < kProbe)) return false;
    skipped_ = 0;
    spinning_ = true;
    last_ = now;
    return true;
  }
  if (now - last_ < budget_) return true;
  spinning_ = false;
  if (score_ > 0) --score_;
  return false;
}

Loop::Loop(caf::actor_system& system, std::chrono::nanoseconds spin)
    : caf::execution_unit(&system), spin_(spin) {}

bool Loop::on_this_thread() const {
  return current_loop == this;
}

bool Loop::post(Task task) {
  std::lock_guard lock(mutex_);  // also for signal(): the messenger exists until closed_ is set
  if (closed_) return false;
  posted_.push_back(kj::mv(task));
  has_posted_.store(true, std::memory_order_seq_cst);
  // sleep() sets asleep_ before it reads has_posted_, so at least one of the two threads sees the
  // other's flag.
  if (asleep_.load(std::memory_order_seq_cst)) messenger_->signal();
  return true;
}

bool Loop::flush() {
  if (in_posted_) return false;
  run_posted();
  return true;
}

bool Loop::run_posted() {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  {
    std::lock_guard lock(mutex_);
    batch_.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);
  }
  in_posted_ = true;
  for (Task& task : batch_) task();
  batch_.clear();
  in_posted_ = false;
  return true;
}

void Loop::call_at(Clock::time_point when, Task task) {
  timers_.emplace(when, kj::mv(task));
}

bool Loop::run_timers(Clock::time_point now) {
  if (timers_.empty() || timers_.begin()->first > now) return false;
  Task task = kj::mv(timers_.begin()->second);
  timers_.erase(timers_.begin());
  task();
  return true;
}

void Loop::when_readable(int fd, Task task) {
  readable_.insert_or_assign(fd, kj::mv(task));
}

void Loop::exec_later(caf::resumable* job) {
  if (on_this_thread() && messenger_ && !quit_) {
    jobs_.push_back(job);
  } else {
    system().scheduler().enqueue(job);
  }
}

bool Loop::run_jobs() {
  if (jobs_.empty()) return false;
  auto start = Clock::now(), now = start;
  // After kJobsBudget, the scheduler's workers take over the remaining actors, and this thread
  // polls the network again.
  while (!jobs_.empty() && now - start < kJobsBudget) {
    caf::resumable* job = jobs_.front();
    jobs_.pop_front();
    auto result = job->resume(this, kMessagesPerJob);
    if (result == caf::resumable::resume_later) {
      jobs_.push_back(job);
    } else {
      caf::intrusive_ptr_release(job);
    }
    auto before = now;
    now = Clock::now();
    if (now - before > kSlowHandler) {
      log::warn("an actor's handler blocked the transport thread for {} ms; spawn it detached",
                std::chrono::duration_cast<std::chrono::milliseconds>(now - before).count());
    }
  }
  for (caf::resumable* job : jobs_) system().scheduler().enqueue(job);
  jobs_.clear();
  return true;
}

void Loop::sleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (!has_posted_.load(std::memory_order_seq_cst)) {
    if (messenger_->arm()) {
      int timeout_ms = -1;
      if (!timers_.empty()) {
        auto left =
            std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now());
        timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
      }
      polled_.assign(1, {messenger_->event_fd(), POLLIN, 0});
      for (const auto& [fd, task] : readable_) polled_.push_back({fd, POLLIN, 0});
      ::poll(polled_.data(), polled_.size(), timeout_ms);
    }
  }
  asleep_.store(false, std::memory_order_relaxed);
  for (size_t i = 1; i < polled_.size(); ++i) {
    if (polled_[i].revents == 0) continue;
    for (int round = 0; round < kRoundsMax && messenger_->progress(); ++round) {
    }  // handles what the peer sent before it ended
    auto found = readable_.find(polled_[i].fd);
    if (found == readable_.end()) continue;  // a task has called forget()
    // progress() may have closed this descriptor and opened another one with its number.
    pollfd again{polled_[i].fd, POLLIN, 0};
    if (::poll(&again, 1, 0) <= 0) continue;
    Task task = kj::mv(found->second);
    readable_.erase(found);
    task();
  }
  polled_.clear();
  spin_.woke(Clock::now());
}

void Loop::run(stream::Messenger& messenger) {
  current_loop = this;
  messenger_ = &messenger;
  while (!quit_) {
    bool busy = false;
    for (int i = 0; i < kRoundsMax && messenger.progress(); ++i) busy = true;
    busy |= run_posted();
    busy |= run_jobs();
    auto now = Clock::now();
    busy |= run_timers(now);
    if (busy) {
      spin_.hit(now);
    } else if (spin_.poll_again(now)) {
      sched_yield();  // let other processes on this core run, perhaps the peer
    } else {
      sleep();
    }
  }
  // Run everything that is still posted, so that every waiting caller gets its answer.
  for (bool done = false; !done;) {
    run_posted();
    for (caf::resumable* job : jobs_) system().scheduler().enqueue(job);
    jobs_.clear();
    std::lock_guard lock(mutex_);
    done = closed_ = posted_.empty();
  }
  timers_.clear();
  messenger_ = nullptr;
  current_loop = nullptr;
}

}  // namespace simplescale::remote
