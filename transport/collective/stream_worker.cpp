// The stream worker's thread and its loop. And the functions that other threads call.
#include "transport/collective/stream_worker.hpp"

#include <poll.h>
#include <pthread.h>
#include <sodium.h>

#include <algorithm>
#include <future>

#include "transport/collective/stream_impl.hpp"

namespace simplescale::collective {

namespace {

using std::chrono::milliseconds;

constexpr int kFlushTimeoutMs = 2000;

}  // namespace

StreamChannel::StreamChannel(const ChannelSpec& spec)
    : Channel(spec), members(spec.addresses.size()) {
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].address = spec.addresses[i];
    if (const auto address = stream::decode(members[i].address)) members[i].id = address->id;
  }
}

// --- The loop ---

Status StreamWorker::Impl::start(const std::string& key) {
  stream::MessengerOptions options;
  options.key = key;
  options.network = true;
  // No other messenger has this host: every connection is encrypted, also inside one host.
  if (sodium_init() < 0) return Status(Code::internal, "libsodium cannot be initialised");
  randombytes_buf(options.host.data(), options.host.size());
  SS_ASSIGN(messenger, stream::Messenger::create(
                           std::move(options),
                           {[this](const stream::LinkPtr& link, stream::Incoming& message) {
                              on_message(link, message);
                            },
                            [this](const stream::LinkPtr& link, stream::End,
                                   const std::string& why) { on_end(link, why); }}));
  const auto address = stream::decode(messenger->address());
  SS_ASSERT(address);
  id = address->id;
  return {};
}

bool StreamWorker::Impl::run_commands() {
  std::vector<std::function<void()>> now;
  {
    std::lock_guard guard(lock);
    now.swap(commands);
  }
  for (auto& command : now) command();
  return !now.empty();
}

void StreamWorker::Impl::run() {
  pthread_setname_np(pthread_self(), "data plane");
  auto last_busy = Clock::now();
  while (!stop.load()) {
    bool busy = woken.exchange(false);
    busy |= messenger->progress();
    busy |= run_commands();
    busy |= pump();
    send_hellos();
    if (busy) {
      last_busy = Clock::now();
      continue;
    }
    const int spin = spin_us.load(std::memory_order_relaxed);
    if (spin > 0 && Clock::now() - last_busy < std::chrono::microseconds(spin)) continue;
    if (!messenger->arm()) continue;
    int timeout_ms = -1;
    if (next_hello != Clock::time_point::max())
      timeout_ms = static_cast<int>(
          std::max<int64_t>(1, std::chrono::ceil<milliseconds>(next_hello - Clock::now()).count()));
    pollfd event{messenger->event_fd(), POLLIN, 0};
    ::poll(&event, 1, timeout_ms);
  }
  messenger->flush(kFlushTimeoutMs);
}

// --- What other threads call ---

Result<std::unique_ptr<StreamWorker>> StreamWorker::create(const std::string& key,
                                                           std::function<void()> ring) {
  auto impl = std::make_unique<Impl>();
  impl->ring = std::move(ring);
  SS_RETURN_IF_ERROR(impl->start(key).in("data plane"));
  impl->thread = std::thread([impl = impl.get()] { impl->run(); });
  return std::unique_ptr<StreamWorker>(new StreamWorker(std::move(impl)));
}

StreamWorker::StreamWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StreamWorker::~StreamWorker() {
  impl_->stop = true;
  impl_->messenger->signal();
  impl_->thread.join();
}

const WorkerAddress& StreamWorker::address() const {
  return impl_->messenger->address();
}

void StreamWorker::set_spin_us(int spin_us) {
  impl_->spin_us = spin_us;
}

ChannelPtr StreamWorker::attach(const ChannelSpec& spec) {
  auto channel = std::make_shared<StreamChannel>(spec);
  {
    std::lock_guard guard(impl_->lock);
    impl_->channels[{channel->generation, channel->name_hash}] = channel;
  }
  impl_->post([impl = impl_.get()] { impl->next_hello = Impl::Clock::now(); });
  return channel;
}

void StreamWorker::detach(const ChannelPtr& base, bool graceful) {
  const auto channel = std::static_pointer_cast<StreamChannel>(base);
  std::promise<void> done;
  impl_->post([&, impl = impl_.get()] {
    impl->end_channel(channel, graceful);
    done.set_value();
  });
  done.get_future().wait();
}

std::vector<Unjoined> StreamWorker::unjoined(const ChannelPtr& base) {
  const auto channel = std::static_pointer_cast<StreamChannel>(base);
  std::lock_guard guard(impl_->lock);
  std::vector<Unjoined> found;
  for (size_t i = 0; i < channel->members.size(); ++i)
    if (const auto& m = channel->members[i]; !m.address.empty() && !m.acknowledged)
      found.push_back({static_cast<int>(i), m.unjoined});
  return found;
}

}  // namespace simplescale::collective
