// What the two workers of a data plane have in common: a thread with its loop, the channels and their
// hellos, commands that other threads post to the thread; and a part of their links.
#pragma once

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/collective/remote.hpp"

namespace simplescale::collective {

inline constexpr std::chrono::milliseconds kHelloInterval{50};

/// One remote member of a channel. A worker adds what it sends to the member and has received.
struct RemoteMember {
  explicit RemoteMember(WorkerAddress at) : address(std::move(at)) {}
  WorkerAddress address;  ///< never changes; empty: not reached by this worker
  bool acknowledged = false;
  std::string unjoined;  ///< why it has not acknowledged; or empty
  Status broken;

  /// It has not joined yet.
  bool is_missing() const { return !address.empty() && !acknowledged; }
  bool is_joined() const { return acknowledged && broken.ok(); }
  /// Marks the member as broken; the first reason stays.
  void fail(const std::string& why) {
    if (broken.ok()) broken = Status(Code::unavailable, why);
  }
};

/// Member: derived from RemoteMember. The worker's lock guards `members` and `tickets`.
template <typename Member>
struct ChannelOf final : Channel {
  explicit ChannelOf(const ChannelSpec& spec)
      : Channel(spec), members(spec.addresses.begin(), spec.addresses.end()) {}
  std::vector<Member> members;  ///< by rank
  uint64_t tickets = 0;
};

/// `lock` guards the channels' contents, `channels` and `commands`. Only the worker's thread uses
/// the rest, if not said otherwise.
template <typename Member>
struct WorkerBase : RemoteWorker {
  using Clock = std::chrono::steady_clock;
  using MemberChannelPtr = std::shared_ptr<ChannelOf<Member>>;
  using Target = std::pair<MemberChannelPtr, uint16_t>;  // a channel's member

  std::function<void()> ring;  // called when data arrived, was sent, or a member was lost
  Clock::time_point next_hello = Clock::time_point::max();
  std::atomic<int> spin_us{0};
  bool stopping = false;
  std::thread thread;

  std::mutex lock;
  std::map<std::pair<uint64_t, uint64_t>, MemberChannelPtr> channels;  // by generation, name_hash
  std::vector<std::function<void()>> commands;

  // --- Any thread ---

  /// Ends the thread's sleep, so that it runs `commands`.
  virtual void wake() = 0;

  void post(std::function<void()> command) {
    {
      std::lock_guard guard(lock);
      commands.push_back(std::move(command));
    }
    wake();
  }

  void set_spin_us(int us) final { spin_us = us; }

  ChannelPtr attach(const ChannelSpec& spec) final {
    auto channel = std::make_shared<ChannelOf<Member>>(spec);
    {
      std::lock_guard guard(lock);
      channels[{channel->generation, channel->name_hash}] = channel;
    }
    post([this] { next_hello = Clock::now(); });
    return channel;
  }

  void detach(const ChannelPtr& channel, bool graceful) final {
    std::promise<void> done;
    post([&] {
      end_channel(std::static_pointer_cast<ChannelOf<Member>>(channel), graceful);
      done.set_value();
    });
    done.get_future().wait();
  }

  std::vector<Unjoined> unjoined(const ChannelPtr& channel) final {
    const auto& members = static_cast<const ChannelOf<Member>&>(*channel).members;
    std::lock_guard guard(lock);
    std::vector<Unjoined> found;
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i].is_missing()) found.push_back({static_cast<int>(i), members[i].unjoined});
    return found;
  }

 protected:
  /// Begins the thread, which calls `start` and then run(). The error of `start`.
  Status begin(const std::function<Status()>& start) {
    std::promise<Status> started;
    thread = std::thread([&] {
      const Status status = start();
      started.set_value(status);  // the promise and `start` end here
      if (status.ok()) run();
    });
    const Status status = started.get_future().get();
    if (!status.ok()) thread.join();
    return status.in("data plane");
  }

  /// Ends the thread. The destructor of each worker calls it first: the thread calls the functions
  /// below, and post() may wake the network until the thread has ended.
  void end() {
    if (!thread.joinable()) return;
    post([this] { stopping = true; });
    thread.join();
  }

  // --- What a worker defines, for its thread ---

  /// Sends, receives and runs the commands, for a moment. False: there was nothing to do.
  virtual bool progress() = 0;
  /// Before the thread waits for event_fd(). False: there is something to do.
  virtual bool arm() = 0;
  virtual int event_fd() const = 0;
  /// Before the thread ends: sends what is left.
  virtual void flush() = 0;
  virtual void send_hello(const MemberChannelPtr& channel, uint16_t to, Clock::time_point now) = 0;
  virtual void send_bye(const MemberChannelPtr& channel, uint16_t to) = 0;
  /// Drops what is to be sent to the member, which lies in the caller's memory, and what has come
  /// from it. Under the lock.
  virtual void clear(Member& member) = 0;

  // --- The worker's thread ---

  bool run_commands() {
    std::vector<std::function<void()>> now;
    {
      std::lock_guard guard(lock);
      now.swap(commands);
    }
    for (auto& command : now) command();
    return !now.empty();
  }

  /// The members of all channels for which `holds` is true.
  template <typename Predicate>
  std::vector<Target> members_that(Predicate holds) {
    std::lock_guard guard(lock);
    std::vector<Target> found;
    for (const auto& [name, channel] : channels)
      for (uint16_t i = 0; i < channel->members.size(); ++i)
        if (holds(channel->members[i])) found.emplace_back(channel, i);
    return found;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "data plane");
    auto last_busy = Clock::now();
    while (!stopping) {
      const bool busy = progress();
      send_hellos();
      if (busy) {
        last_busy = Clock::now();
        continue;
      }
      const int spin = spin_us.load(std::memory_order_relaxed);
      if (spin > 0 && Clock::now() - last_busy < std::chrono::microseconds(spin)) continue;
      if (!arm()) continue;
      int timeout_ms = -1;
      if (next_hello != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_hello - Clock::now());
        timeout_ms = static_cast<int>(std::max<int64_t>(1, left.count()));
      }
      pollfd event{event_fd(), POLLIN, 0};
      ::poll(&event, 1, timeout_ms);
    }
    flush();
  }

  void send_hellos() {
    const auto now = Clock::now();
    if (now < next_hello) return;
    const auto missing =
        members_that([](const Member& m) { return m.is_missing() && m.broken.ok(); });
    next_hello = missing.empty() ? Clock::time_point::max() : now + kHelloInterval;
    for (const auto& [channel, to] : missing) send_hello(channel, to, now);
  }

  void end_channel(const MemberChannelPtr& channel, bool graceful) {
    {
      std::lock_guard guard(lock);
      std::erase_if(channels, [&](const auto& entry) { return entry.second == channel; });
      for (Member& member : channel->members) clear(member);
    }
    if (graceful) return;
    for (uint16_t i = 0; i < channel->members.size(); ++i)
      if (channel->members[i].is_joined()) send_bye(channel, i);
  }
};

/// A link to a channel's member, for the caller: takes the worker's lock and posts commands to its
/// thread. Derived classes define how pieces are sent and read.
template <typename Worker, typename Member>
class RemoteLink : public Link {
 public:
  RemoteLink(Worker& worker, const ChannelPtr& channel, int peer, std::string peer_name)
      : worker_(worker),
        channel_(std::static_pointer_cast<ChannelOf<Member>>(channel)),
        peer_(static_cast<uint16_t>(peer)),
        peer_name_(std::move(peer_name)) {}

  bool reads_arena() const final { return false; }
  void notify() final {}
  Status health(bool) final {
    std::lock_guard guard(worker_.lock);
    if (member().broken.ok()) return {};
    return Status(Code::unavailable, peer_name_ + " " + member().broken.message());
  }

 protected:
  Member& member() { return channel_->members[peer_]; }

  Worker& worker_;
  const std::shared_ptr<ChannelOf<Member>> channel_;
  const uint16_t peer_;

 private:
  const std::string peer_name_;
};

}  // namespace simplescale::collective
