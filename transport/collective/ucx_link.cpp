// A link over the UCX worker: reads and writes the streams of a channel for the caller. Takes the
// worker's lock, posts commands to its thread and never calls UCX.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/collective/ucx_worker.hpp"

namespace simplescale::collective {

namespace {

class UcxLink final : public RemoteLink<UcxWorker, UcxMember> {
 public:
  using RemoteLink::RemoteLink;

  std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                             bool first_in_line) override {
    Ticket ticket;
    if (copy) {
      auto sending = std::make_shared<UcxWorker::Sending>();
      sending->header = UcxHeader::of(*channel_, UcxKind::data, peer_, key, offset);
      sending->channel = channel_;
      sending->bytes = data.size();
      sending->data = std::make_unique_for_overwrite<std::byte[]>(data.size());
      std::memcpy(sending->data.get(), data.data(), data.size());
      worker_.post([worker = &worker_, sending] {
        worker->send(std::make_unique<UcxWorker::Sending>(std::move(*sending)));
      });
      return ticket;
    }
    {
      std::lock_guard guard(worker_.lock);
      auto& queue = member().queues[first_in_line];
      auto& waiting = queue.waiting;
      const size_t fragments = (data.size() + kUcxFragment - 1) / kUcxFragment;
      if (!first_in_line && waiting.size() + queue.under_way + fragments > kUcxWindow)
        return std::nullopt;  // so this queue never blocks the operation that becomes the oldest
      ticket.id = ++channel_->tickets;
      for (size_t at = 0; at < data.size(); at += kUcxFragment)
        waiting.push_back({key, offset + at,
                           data.subspan(at, std::min(kUcxFragment, data.size() - at)), ticket.id});
      member().uncopied[ticket.id] = fragments;
    }
    worker_.post(
        [worker = &worker_, channel = channel_, to = peer_] { worker->send_waiting(channel, to); });
    return ticket;
  }

  bool is_released(const Ticket& ticket) override {
    std::lock_guard guard(worker_.lock);
    return !member().uncopied.contains(ticket.id);
  }

  bool drained() override {
    std::lock_guard guard(worker_.lock);
    return std::ranges::all_of(member().queues, [](const UcxMember::Queue& queue) {
      return queue.waiting.empty() && queue.under_way == 0;
    });
  }

  void expect(uint64_t key) override {
    std::lock_guard guard(worker_.lock);
    UcxStream& stream = member().streams[key];
    stream.expected = true;
    fetch(stream, key);
  }

  Bytes front(uint64_t key) override {
    std::lock_guard guard(worker_.lock);
    const auto stream = member().streams.find(key);
    if (stream == member().streams.end() || stream->second.pieces.empty()) return {};
    const auto& [offset, piece] = *stream->second.pieces.begin();
    const uint64_t read = stream->second.read;
    if (!piece->complete || read < offset || read - offset >= piece->bytes) return {};
    return Bytes(piece->data.get(), piece->bytes).subspan(read - offset);
  }

  Status pop(uint64_t key, size_t bytes) override {
    std::lock_guard guard(worker_.lock);
    UcxStream& stream = member().streams[key];
    SS_ASSERT(!stream.pieces.empty());
    stream.read += bytes;
    const auto first = stream.pieces.begin();
    if (stream.read < first->first + first->second->bytes) return {};
    if (first->second->pooled)
      worker_.give_buffer(std::move(first->second->data));
    else
      member().early -= first->second->cost();
    stream.pieces.erase(first);
    fetch(stream, key);
    return {};
  }

  void forget(uint64_t key) override {
    std::lock_guard guard(worker_.lock);
    const auto stream = member().streams.find(key);
    if (stream == member().streams.end()) return;
    for (const auto& [offset, piece] : stream->second.pieces)
      if (!piece->pooled) member().early -= piece->cost();
    for (const auto& piece : stream->second.announced)
      worker_.commands.push_back([worker = &worker_, descriptor = piece.descriptor] {
        ucp_am_data_release(worker->ucp_worker->handle(), descriptor);
      });
    if (!stream->second.announced.empty()) worker_.wake();
    member().streams.erase(stream);
  }

 private:
  /// Lets the worker's thread fetch announced pieces. Under the lock.
  void fetch(const UcxStream& stream, uint64_t key) {
    if (stream.announced.empty()) return;
    worker_.commands.push_back([worker = &worker_, channel = channel_, from = peer_, key] {
      worker->fetch(channel, from, key);
    });
    worker_.wake();
  }
};

}  // namespace

std::unique_ptr<Link> UcxWorker::link(const ChannelPtr& channel, int peer, std::string peer_name) {
  return std::make_unique<UcxLink>(*this, channel, peer, std::move(peer_name));
}

}  // namespace simplescale::collective
