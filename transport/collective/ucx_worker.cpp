#include "transport/collective/ucx_worker.hpp"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/log.hpp"
#include "transport/ucx/ucx.hpp"

namespace simplescale::collective {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kMessageId = 1;
constexpr uint32_t kMagic = 0x31637353;
constexpr size_t kFragment = size_t{1} << 20;  // of a large piece: one request
constexpr size_t kWindow = 8;                  // fragments of a queue under way
constexpr size_t kPool = 64;                   // idle buffers kept
constexpr milliseconds kGreetEvery{50};
constexpr milliseconds kPatience{2000};  // for UCX to give up what was closed or flushed

enum class Kind : uint32_t { hello, acknowledge, bye, data };

/// The header of every message.
struct Header {
  uint32_t magic;
  Kind kind;
  uint64_t generation;
  uint64_t name_hash;
  uint32_t from, to;
  uint64_t key;
  uint64_t offset;
};

}  // namespace

/// What the thread owns. `lock` guards the channels, `channels` and `commands`; the rest is the
/// thread's own.
struct UcxWorker::Impl {
  struct Connection {
    std::unique_ptr<ucx::Endpoint> endpoint;
    ucs_status_t failed = UCS_OK;
  };
  /// A send in UCX's hands; kept until it completes.
  struct Sending {
    Impl* impl;
    Header header;
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    bool large = false;  // data is of the pool
    int queue = 0;       // of a large one
    UcxChannelPtr channel;
  };
  struct Receiving {
    Impl* impl;
    UcxChannelPtr channel;
    uint32_t from;
    std::shared_ptr<UcxPiece> piece;
  };

  std::function<void()> ring;
  std::unique_ptr<ucx::Context> context;
  std::unique_ptr<ucx::Worker> worker;
  std::map<UcxAddress, Connection> connections;
  Clock::time_point next_greeting;
  std::atomic<int> spin_us{0};
  std::atomic<bool> stop{false};
  std::thread thread;

  std::mutex lock;
  std::map<std::pair<uint64_t, uint64_t>, UcxChannelPtr> channels;
  std::vector<std::function<void()>> commands;
  std::vector<std::unique_ptr<std::byte[]>> pool;  // of kFragment bytes each

  // --- Any thread ---

  void post(std::function<void()> command) {
    {
      std::lock_guard guard(lock);
      commands.push_back(std::move(command));
    }
    worker->signal();
  }

  // --- The worker's thread ---

  Status start();
  void run();
  bool run_commands();
  void greet();
  bool close_failed();
  void break_members(const UcxAddress& address, const std::string& why);
  ucp_ep_h connect(const UcxAddress& address);
  void say(Kind kind, const UcxChannelPtr& channel, uint32_t to);
  void send(std::unique_ptr<Sending> sending);
  void pump(const UcxChannelPtr& channel, uint32_t to);
  void sent(std::unique_ptr<Sending> sending, ucs_status_t status);
  void receive(const UcxChannelPtr& channel, uint32_t from, uint64_t key,
               UcxStream::Announced piece);
  void received(std::unique_ptr<Receiving> receiving, ucs_status_t status);
  ucs_status_t on_message(const Header& header, void* data, size_t bytes, bool announced);
  void end(const UcxChannelPtr& channel, bool in_peace);
  void close_all();

  // --- Under the lock ---

  std::unique_ptr<std::byte[]> take_buffer();
  void give_buffer(std::unique_ptr<std::byte[]> buffer);
};

std::unique_ptr<std::byte[]> UcxWorker::Impl::take_buffer() {
  if (pool.empty()) return std::make_unique_for_overwrite<std::byte[]>(kFragment);
  auto buffer = std::move(pool.back());
  pool.pop_back();
  return buffer;
}

void UcxWorker::Impl::give_buffer(std::unique_ptr<std::byte[]> buffer) {
  if (pool.size() < kPool) pool.push_back(std::move(buffer));
}

// --- Connections ---

ucp_ep_h UcxWorker::Impl::connect(const UcxAddress& address) {
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

void UcxWorker::Impl::break_members(const UcxAddress& address, const std::string& why) {
  std::lock_guard guard(lock);
  for (auto& [id, channel] : channels)
    for (auto& member : channel->members)
      if (member.acknowledged && member.broken.ok() && member.address == address)
        member.broken = Status(Code::unavailable, why);
}

// Closing runs the worker, whose callbacks may mark further connections as failed; hence one at a
// time.
bool UcxWorker::Impl::close_failed() {
  bool any = false;
  for (;;) {
    const auto found = std::find_if(connections.begin(), connections.end(),
                                    [](const auto& c) { return c.second.failed != UCS_OK; });
    if (found == connections.end()) break;
    const std::string why = ucs_status_string(found->second.failed);
    const UcxAddress address = found->first;
    log::debug("data plane: a connection is lost: {}", why);
    found->second.endpoint.reset();
    connections.erase(found);
    break_members(address, "is lost (" + why + ")");
    any = true;
  }
  if (any) ring();
  return any;
}

// --- Joining ---

void UcxWorker::Impl::greet() {
  if (Clock::now() < next_greeting) return;
  next_greeting = Clock::now() + kGreetEvery;
  std::vector<std::pair<UcxChannelPtr, uint32_t>> waiting;
  {
    std::lock_guard guard(lock);
    for (auto& [id, channel] : channels)
      for (uint32_t i = 0; i < channel->members.size(); ++i)
        if (const auto& m = channel->members[i]; !m.address.empty() && !m.acknowledged)
          waiting.emplace_back(channel, i);
  }
  if (waiting.empty()) next_greeting = Clock::time_point::max();
  for (const auto& [channel, to] : waiting) say(Kind::hello, channel, to);
}

void UcxWorker::Impl::say(Kind kind, const UcxChannelPtr& channel, uint32_t to) {
  auto sending = std::make_unique<Sending>();
  sending->header = {kMagic,
                     kind,
                     channel->generation,
                     channel->name_hash,
                     static_cast<uint32_t>(channel->rank),
                     to,
                     0,
                     0};
  sending->channel = channel;
  send(std::move(sending));
}

// --- Sending ---

void UcxWorker::Impl::send(std::unique_ptr<Sending> sending) {
  sending->impl = this;
  const ucp_ep_h endpoint = connect(sending->channel->members[sending->header.to].address);
  if (!endpoint) return sent(std::move(sending), UCS_ERR_NOT_CONNECTED);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // Large pieces wait at the sender until the receiver wants them: that is the flow control.
  param.flags = sending->large ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  param.user_data = sending.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    std::unique_ptr<Sending> done(static_cast<Sending*>(user_data));
    Impl* impl = done->impl;
    impl->sent(std::move(done), status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, kMessageId, &sending->header, sizeof(Header), sending->data.get(),
                      sending->bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    (void)sending.release();  // the callback takes it back
  else
    sent(std::move(sending), UCS_PTR_STATUS(request));
}

void UcxWorker::Impl::sent(std::unique_ptr<Sending> sending, ucs_status_t status) {
  if (sending->header.kind != Kind::data) return;  // greetings are repeated
  {
    std::lock_guard guard(lock);
    auto& member = sending->channel->members[sending->header.to];
    if (status != UCS_OK && member.broken.ok())
      member.broken =
          Status(Code::unavailable, std::string("is lost (") + ucs_status_string(status) + ")");
    if (sending->large) {
      --member.queues[sending->queue].under_way;
      give_buffer(std::move(sending->data));
      commands.push_back(
          [this, channel = sending->channel, to = sending->header.to] { pump(channel, to); });
    }
  }
  ring();
}

// Hands over as much of what is waiting for the member as may be under way.
void UcxWorker::Impl::pump(const UcxChannelPtr& channel, uint32_t to) {
  UcxMember& member = channel->members[to];
  for (const int queue : {1, 0}) {
    for (;;) {
      auto sending = std::make_unique<Sending>();
      UcxFragment fragment;
      {
        std::lock_guard guard(lock);
        auto& from = member.queues[queue];
        if (from.waiting.empty() || from.under_way >= kWindow || !member.broken.ok()) break;
        fragment = from.waiting.front();
        from.waiting.pop_front();
        ++from.under_way;
        sending->data = take_buffer();
      }
      std::memcpy(sending->data.get(), fragment.data.data(), fragment.data.size());
      bool copied = false;
      {
        std::lock_guard guard(lock);
        const auto left = member.uncopied.find(fragment.ticket);
        copied = left != member.uncopied.end() && --left->second == 0;
        if (copied) member.uncopied.erase(left);
      }
      if (copied) ring();
      sending->header = {kMagic,
                         Kind::data,
                         channel->generation,
                         channel->name_hash,
                         static_cast<uint32_t>(channel->rank),
                         to,
                         fragment.key,
                         fragment.offset};
      sending->channel = channel;
      sending->bytes = fragment.data.size();
      sending->large = true;
      sending->queue = queue;
      send(std::move(sending));
    }
  }
}

// --- Receiving ---

ucs_status_t UcxWorker::Impl::on_message(const Header& header, void* data, size_t bytes,
                                         bool announced) {
  std::unique_lock guard(lock);
  const auto found = channels.find({header.generation, header.name_hash});
  if (found == channels.end()) return UCS_OK;  // U3
  const UcxChannelPtr channel = found->second;
  if (header.from >= channel->members.size() || static_cast<int>(header.to) != channel->rank)
    return UCS_OK;
  UcxMember& member = channel->members[header.from];
  if (member.address.empty()) return UCS_OK;
  switch (header.kind) {
    case Kind::hello: {
      const bool answer_only = member.acknowledged;
      commands.push_back([this, channel, from = header.from, answer_only] {
        say(Kind::acknowledge, channel, from);
        if (!answer_only) say(Kind::hello, channel, from);
      });
      return UCS_OK;
    }
    case Kind::acknowledge:
      member.acknowledged = true;
      break;
    case Kind::bye:
      if (member.broken.ok())
        member.broken = Status(Code::unavailable, "has left the communicator");
      break;
    case Kind::data: {
      UcxStream& stream = member.streams[header.key];
      if (announced) {
        if (bytes > kFragment) {
          member.broken = Status(Code::unavailable, "announced an impossible piece");
          break;
        }
        const UcxStream::Announced piece{header.offset, bytes, data};
        if (stream.expected)
          commands.push_back(
              [this, channel, header, piece] { receive(channel, header.from, header.key, piece); });
        else
          stream.announced.push_back(piece);
        return UCS_INPROGRESS;
      }
      auto piece = std::make_shared<UcxPiece>();
      piece->data = std::make_unique_for_overwrite<std::byte[]>(bytes);
      piece->bytes = bytes;
      piece->complete = true;
      std::memcpy(piece->data.get(), data, bytes);
      if (bytes > 0) stream.pieces.emplace(header.offset, std::move(piece));
      break;
    }
    default:
      return UCS_OK;
  }
  guard.unlock();
  ring();
  return UCS_OK;
}

void UcxWorker::Impl::receive(const UcxChannelPtr& channel, uint32_t from, uint64_t key,
                              UcxStream::Announced piece) {
  auto receiving = std::make_unique<Receiving>();
  {
    std::lock_guard guard(lock);
    const auto registered = channels.find({channel->generation, channel->name_hash});
    auto& streams = channel->members[from].streams;
    const auto stream = streams.find(key);
    if (registered == channels.end() || registered->second != channel || stream == streams.end()) {
      ucp_am_data_release(worker->handle(), piece.descriptor);
      return;
    }
    auto target = std::make_shared<UcxPiece>();
    target->data = take_buffer();
    target->bytes = piece.bytes;
    target->pooled = true;
    stream->second.pieces.emplace(piece.offset, target);
    *receiving = {this, channel, from, std::move(target)};
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.user_data = receiving.get();
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    std::unique_ptr<Receiving> done(static_cast<Receiving*>(user_data));
    Impl* impl = done->impl;
    impl->received(std::move(done), status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker->handle(), piece.descriptor, receiving->piece->data.get(), piece.bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    (void)receiving.release();
  else
    received(std::move(receiving), UCS_PTR_STATUS(request));
}

void UcxWorker::Impl::received(std::unique_ptr<Receiving> receiving, ucs_status_t status) {
  {
    std::lock_guard guard(lock);
    auto& member = receiving->channel->members[receiving->from];
    if (status == UCS_OK)
      receiving->piece->complete = true;
    else if (member.broken.ok())
      member.broken =
          Status(Code::unavailable, std::string("is lost (") + ucs_status_string(status) + ")");
  }
  ring();
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

Status UcxWorker::Impl::start() {
  // Members on this host share memory without UCX; its own shared memory would only hide their
  // death.
  SS_ASSIGN(context, ucx::Context::create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "^sm"));
  SS_ASSIGN(worker, ucx::Worker::create(*context));
  const auto callback = [](void* self, const void* head, size_t head_bytes, void* data,
                           size_t bytes, const ucp_am_recv_param_t* param) -> ucs_status_t {
    Header header;
    if (head_bytes != sizeof(header)) return UCS_OK;
    std::memcpy(&header, head, sizeof(header));
    if (header.magic != kMagic) return UCS_OK;
    const bool announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    return static_cast<Impl*>(self)->on_message(header, data, bytes, announced);
  };
  return worker->on_message(kMessageId, callback, this, UCP_AM_FLAG_WHOLE_MSG);
}

void UcxWorker::Impl::run() {
  pthread_setname_np(pthread_self(), "data plane");
  auto last_busy = Clock::now();
  while (!stop.load()) {
    bool busy = false;
    for (int i = 0; i < 32 && worker->progress(); ++i) busy = true;
    busy |= run_commands();
    busy |= close_failed();
    greet();
    if (busy) {
      last_busy = Clock::now();
      continue;
    }
    const int spin = spin_us.load(std::memory_order_relaxed);
    if (spin > 0 && Clock::now() - last_busy < std::chrono::microseconds(spin)) continue;
    const auto armed = worker->arm();
    if (armed.ok() && !*armed) continue;
    int timeout_ms = -1;
    if (next_greeting != Clock::time_point::max())
      timeout_ms = static_cast<int>(std::max<int64_t>(
          1, std::chrono::ceil<milliseconds>(next_greeting - Clock::now()).count()));
    pollfd event{worker->event_fd(), POLLIN, 0};
    ::poll(&event, 1, timeout_ms);
  }
  close_all();
}

void UcxWorker::Impl::end(const UcxChannelPtr& channel, bool in_peace) {
  {
    std::lock_guard guard(lock);
    const auto found = channels.find({channel->generation, channel->name_hash});
    if (found != channels.end() && found->second == channel) channels.erase(found);
    for (auto& member : channel->members) {
      for (auto& queue : member.queues) queue.waiting.clear();  // U1
      for (auto& [key, stream] : member.streams)
        for (const auto& piece : std::exchange(stream.announced, {}))
          ucp_am_data_release(worker->handle(), piece.descriptor);
    }
  }
  if (in_peace) return;
  for (uint32_t i = 0; i < channel->members.size(); ++i)
    if (channel->members[i].acknowledged && channel->members[i].broken.ok())
      say(Kind::bye, channel, i);
}

void UcxWorker::Impl::close_all() {
  ucp_request_param_t param{};
  const ucs_status_ptr_t flush = ucp_worker_flush_nbx(worker->handle(), &param);
  if (UCS_PTR_IS_PTR(flush)) {
    const auto limit = Clock::now() + kPatience;
    while (ucp_request_check_status(flush) == UCS_INPROGRESS && Clock::now() < limit)
      if (!worker->progress()) std::this_thread::yield();
    ucp_request_free(flush);
  }
  while (!connections.empty()) {
    connections.begin()->second.endpoint.reset();
    connections.erase(connections.begin());
  }
  worker.reset();
}

// --- What other threads call ---

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(std::function<void()> ring) {
  auto impl = std::make_unique<Impl>();
  impl->ring = std::move(ring);
  impl->next_greeting = Clock::time_point::max();
  std::promise<Status> started;
  impl->thread = std::thread([&started, impl = impl.get()] {
    const Status status = impl->start();
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
  impl_->thread.join();
}

const UcxAddress& UcxWorker::address() const {
  return impl_->worker->address();
}

void UcxWorker::set_spin_us(int spin_us) {
  impl_->spin_us = spin_us;
}

void UcxWorker::attach(const UcxChannelPtr& channel) {
  {
    std::lock_guard guard(impl_->lock);
    impl_->channels[{channel->generation, channel->name_hash}] = channel;
  }
  impl_->post([impl = impl_.get()] { impl->next_greeting = Clock::now(); });
}

void UcxWorker::detach(const UcxChannelPtr& channel, bool in_peace) {
  std::promise<void> done;
  impl_->post([&, impl = impl_.get()] {
    impl->end(channel, in_peace);
    done.set_value();
  });
  done.get_future().wait();
}

std::vector<int> UcxWorker::missing(const UcxChannelPtr& channel) {
  std::lock_guard guard(impl_->lock);
  std::vector<int> ranks;
  for (size_t i = 0; i < channel->members.size(); ++i)
    if (const auto& m = channel->members[i]; !m.address.empty() && !m.acknowledged)
      ranks.push_back(static_cast<int>(i));
  return ranks;
}

// --- The link ---

class UcxLink final : public Link {
 public:
  UcxLink(UcxWorker::Impl& impl, UcxChannelPtr channel, int peer, std::string peer_name)
      : impl_(impl), channel_(std::move(channel)), peer_(peer), peer_name_(std::move(peer_name)) {}

  bool reads_arena() const override { return false; }

  std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                             bool first_in_line) override {
    const auto to = static_cast<uint32_t>(peer_);
    Ticket ticket;
    if (copy) {
      auto sending = std::make_shared<UcxWorker::Impl::Sending>();
      sending->header = {kMagic,
                         Kind::data,
                         channel_->generation,
                         channel_->name_hash,
                         static_cast<uint32_t>(channel_->rank),
                         to,
                         key,
                         offset};
      sending->channel = channel_;
      sending->bytes = data.size();
      sending->data = std::make_unique_for_overwrite<std::byte[]>(data.size());
      std::memcpy(sending->data.get(), data.data(), data.size());
      impl_.post([impl = &impl_, sending] {
        impl->send(std::make_unique<UcxWorker::Impl::Sending>(std::move(*sending)));
      });
      return ticket;
    }
    {
      std::lock_guard guard(impl_.lock);
      auto& queue = member().queues[first_in_line];
      auto& waiting = queue.waiting;
      const size_t fragments = (data.size() + kFragment - 1) / kFragment;
      if (!first_in_line && waiting.size() + queue.under_way + fragments > kWindow)
        return std::nullopt;  // U2: nothing waits here that could become the oldest later
      ticket.id = ++channel_->tickets;
      for (size_t at = 0; at < data.size(); at += kFragment)
        waiting.push_back(
            {key, offset + at, data.subspan(at, std::min(kFragment, data.size() - at)), ticket.id});
      member().uncopied[ticket.id] = fragments;
    }
    impl_.post([impl = &impl_, channel = channel_, to] { impl->pump(channel, to); });
    return ticket;
  }

  bool settled(const Ticket& ticket) override {
    std::lock_guard guard(impl_.lock);
    return !member().uncopied.contains(ticket.id);
  }

  bool drained() override {
    std::lock_guard guard(impl_.lock);
    return std::ranges::all_of(member().queues, [](const UcxMember::Queue& queue) {
      return queue.waiting.empty() && queue.under_way == 0;
    });
  }

  void expect(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    UcxStream& stream = member().streams[key];
    stream.expected = true;
    if (stream.announced.empty()) return;
    for (const auto& piece : std::exchange(stream.announced, {}))
      impl_.commands.push_back([impl = &impl_, channel = channel_,
                                from = static_cast<uint32_t>(peer_), key,
                                piece] { impl->receive(channel, from, key, piece); });
    impl_.worker->signal();
  }

  Bytes front(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    const auto stream = member().streams.find(key);
    if (stream == member().streams.end() || stream->second.pieces.empty()) return {};
    const auto& [offset, piece] = *stream->second.pieces.begin();
    const uint64_t read = stream->second.read;
    if (!piece->complete || read < offset || read - offset >= piece->bytes) return {};
    return Bytes(piece->data.get(), piece->bytes).subspan(read - offset);
  }

  Status pop(uint64_t key, size_t bytes) override {
    std::lock_guard guard(impl_.lock);
    UcxStream& stream = member().streams[key];
    SS_ASSERT(!stream.pieces.empty());
    stream.read += bytes;
    const auto first = stream.pieces.begin();
    if (stream.read < first->first + first->second->bytes) return {};
    if (first->second->pooled) impl_.give_buffer(std::move(first->second->data));
    stream.pieces.erase(first);
    return {};
  }

  void forget(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    member().streams.erase(key);
  }

  Status health(bool) override {
    std::lock_guard guard(impl_.lock);
    if (member().broken.ok()) return {};
    return Status(Code::unavailable, peer_name_ + " " + member().broken.message());
  }

  void notify() override {}

 private:
  UcxMember& member() { return channel_->members[static_cast<size_t>(peer_)]; }
  UcxWorker::Impl& impl_;
  UcxChannelPtr channel_;
  int peer_;
  std::string peer_name_;
};

std::unique_ptr<Link> UcxWorker::link(const UcxChannelPtr& channel, int peer,
                                      std::string peer_name) {
  return std::make_unique<UcxLink>(*impl_, channel, peer, std::move(peer_name));
}

}  // namespace simplescale::collective
