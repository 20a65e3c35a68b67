// The UCX worker's thread: connections, hellos and the loop. And the functions that other threads
// call.
#include "transport/collective/ucx_worker.hpp"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "runtime/base/log.hpp"
#include "transport/collective/ucx_impl.hpp"

namespace simplescale::collective {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHelloInterval{50};
constexpr milliseconds kFlushTimeout{2000};

}  // namespace

// --- Connections ---

ucp_ep_h UcxWorker::Impl::connect(const WorkerAddress& address) {
  auto& connection = connections[address];
  if (connection.failed != UCS_OK) return nullptr;
  if (!connection.endpoint) {
    auto endpoint =
        ucx::Endpoint::create(*worker, address.data(),
                              [&connection](ucs_status_t status) { connection.failed = status; });
    if (!endpoint.ok()) {
      log::debug("data plane: {}", endpoint.status().message());
      connections.erase(address);
      return nullptr;
    }
    connection.endpoint = endpoint.take();
  }
  return connection.endpoint->handle();
}

void UcxWorker::Impl::fail_members(const WorkerAddress& address, const std::string& why) {
  std::lock_guard guard(lock);
  for (auto& [id, channel] : channels)
    for (auto& member : channel->members)
      if (member.acknowledged && member.address == address) member.fail(why);
}

// Closes failed connections one at a time: closing progresses UCX, whose callbacks may mark further
// connections as failed.
bool UcxWorker::Impl::close_failed() {
  bool any = false;
  for (;;) {
    const auto found = std::find_if(connections.begin(), connections.end(),
                                    [](const auto& c) { return c.second.failed != UCS_OK; });
    if (found == connections.end()) break;
    const std::string why = lost(found->second.failed);
    const WorkerAddress address = found->first;
    log::debug("data plane: a connection {}", why);
    found->second.endpoint.reset();
    connections.erase(found);
    fail_members(address, why);
    any = true;
  }
  if (any) ring();
  return any;
}

// --- Joining ---

void UcxWorker::Impl::send_hellos() {
  if (Clock::now() < next_hello) return;
  next_hello = Clock::now() + kHelloInterval;
  std::vector<std::pair<UcxChannelPtr, uint32_t>> waiting;
  {
    std::lock_guard guard(lock);
    for (auto& [id, channel] : channels)
      for (uint32_t i = 0; i < channel->members.size(); ++i)
        if (const auto& m = channel->members[i]; !m.address.empty() && !m.acknowledged)
          waiting.emplace_back(channel, i);
  }
  if (waiting.empty()) next_hello = Clock::time_point::max();
  for (const auto& [channel, to] : waiting) send_control(UcxKind::hello, channel, to);
}

void UcxWorker::Impl::send_control(UcxKind kind, const UcxChannelPtr& channel, uint32_t to) {
  auto sending = std::make_unique<Sending>();
  sending->header = UcxHeader::of(*channel, kind, to);
  sending->channel = channel;
  send(std::move(sending));
}

// --- The loop ---

bool UcxWorker::Impl::run_commands() {
  std::vector<std::function<void()>> now;
  {
    std::lock_guard guard(lock);
    now.swap(commands);
  }
  for (auto& command : now) command();
  return !now.empty();
}

Status UcxWorker::Impl::start(const ucx::Devices& devices) {
  // Members on this host share memory without UCX, and over UCX's shared memory a peer's death
  // would go unnoticed.
  SS_ASSIGN(context, ucx::Context::create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "^sm", &devices));
  SS_ASSIGN(worker, ucx::Worker::create(*context));
  const auto callback = [](void* self, const void* head, size_t head_bytes, void* data,
                           size_t bytes, const ucp_am_recv_param_t* param) -> ucs_status_t {
    UcxHeader header;
    if (head_bytes != sizeof(header)) return UCS_OK;
    std::memcpy(&header, head, sizeof(header));
    if (header.magic != kUcxMagic) return UCS_OK;
    const bool announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    return static_cast<Impl*>(self)->on_message(header, data, bytes, announced);
  };
  return worker->on_message(kUcxMessageId, callback, this, UCP_AM_FLAG_WHOLE_MSG);
}

void UcxWorker::Impl::run() {
  pthread_setname_np(pthread_self(), "data plane");
  auto last_busy = Clock::now();
  while (!stop.load()) {
    bool busy = false;
    for (int i = 0; i < 32 && worker->progress(); ++i) busy = true;
    busy |= run_commands();
    busy |= close_failed();
    send_hellos();
    if (busy) {
      last_busy = Clock::now();
      continue;
    }
    const int spin = spin_us.load(std::memory_order_relaxed);
    if (spin > 0 && Clock::now() - last_busy < std::chrono::microseconds(spin)) continue;
    const auto armed = worker->arm();
    if (armed.ok() && !*armed) continue;
    int timeout_ms = -1;
    if (next_hello != Clock::time_point::max())
      timeout_ms = static_cast<int>(
          std::max<int64_t>(1, std::chrono::ceil<milliseconds>(next_hello - Clock::now()).count()));
    pollfd event{worker->event_fd(), POLLIN, 0};
    ::poll(&event, 1, timeout_ms);
  }
  close_all();
}

void UcxWorker::Impl::end_channel(const UcxChannelPtr& channel, bool graceful) {
  {
    std::lock_guard guard(lock);
    const auto found = channels.find({channel->generation, channel->name_hash});
    if (found != channels.end() && found->second == channel) channels.erase(found);
    for (auto& member : channel->members) {
      for (auto& queue : member.queues) queue.waiting.clear();  // they name the caller's memory
      for (auto& [key, stream] : member.streams)
        for (const auto& piece : std::exchange(stream.announced, {}))
          ucp_am_data_release(worker->handle(), piece.descriptor);
    }
  }
  if (graceful) return;
  for (uint32_t i = 0; i < channel->members.size(); ++i)
    if (channel->members[i].acknowledged && channel->members[i].broken.ok())
      send_control(UcxKind::bye, channel, i);
}

void UcxWorker::Impl::close_all() {
  ucp_request_param_t param{};
  const ucs_status_ptr_t flush = ucp_worker_flush_nbx(worker->handle(), &param);
  if (UCS_PTR_IS_PTR(flush)) {
    const auto limit = Clock::now() + kFlushTimeout;
    while (ucp_request_check_status(flush) == UCS_INPROGRESS && Clock::now() < limit)
      if (!worker->progress()) std::this_thread::yield();
    ucp_request_free(flush);
  }
  while (!connections.empty()) {
    connections.begin()->second.endpoint.reset();
    connections.erase(connections.begin());
  }
}

// --- What other threads call ---

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(std::function<void()> ring,
                                                     const std::vector<std::string>& interfaces) {
  SS_ASSIGN(const ucx::Devices devices, ucx::devices_of(interfaces));
  auto impl = std::make_unique<Impl>();
  impl->ring = std::move(ring);
  impl->next_hello = Clock::time_point::max();
  std::promise<Status> started;
  impl->thread = std::thread([&, impl = impl.get()] {
    const Status status = impl->start(devices);
    started.set_value(status);
    if (status.ok()) impl->run();
  });
  const Status status = started.get_future().get();
  if (status.ok()) return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(impl)));
  impl->thread.join();
  return status.in("data plane");
}

UcxWorker::UcxWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UcxWorker::~UcxWorker() {
  impl_->post([impl = impl_.get()] { impl->stop = true; });
  impl_->thread.join();  // before the UCX worker is destroyed: post() may still signal it
}

const WorkerAddress& UcxWorker::address() const {
  return impl_->worker->address();
}

void UcxWorker::set_spin_us(int spin_us) {
  impl_->spin_us = spin_us;
}

ChannelPtr UcxWorker::attach(const ChannelSpec& spec) {
  auto channel = std::make_shared<UcxChannel>(spec);
  {
    std::lock_guard guard(impl_->lock);
    impl_->channels[{channel->generation, channel->name_hash}] = channel;
  }
  impl_->post([impl = impl_.get()] { impl->next_hello = Clock::now(); });
  return channel;
}

void UcxWorker::detach(const ChannelPtr& base, bool graceful) {
  const auto channel = std::static_pointer_cast<UcxChannel>(base);
  std::promise<void> done;
  impl_->post([&, impl = impl_.get()] {
    impl->end_channel(channel, graceful);
    done.set_value();
  });
  done.get_future().wait();
}

std::vector<Unjoined> UcxWorker::unjoined(const ChannelPtr& base) {
  const auto channel = std::static_pointer_cast<UcxChannel>(base);
  std::lock_guard guard(impl_->lock);
  std::vector<Unjoined> found;
  for (size_t i = 0; i < channel->members.size(); ++i)
    if (const auto& m = channel->members[i]; !m.address.empty() && !m.acknowledged)
      found.push_back({static_cast<int>(i), ""});
  return found;
}

}  // namespace simplescale::collective
