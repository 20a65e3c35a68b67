// A link over the stream worker: reads and writes the streams of a channel for the caller. Takes the
// worker's lock and posts commands to its thread.
#include <cstring>
#include <utility>

#include "transport/collective/stream_impl.hpp"

namespace simplescale::collective {

namespace {

class StreamLink final : public Link {
 public:
  StreamLink(StreamWorker::Impl& impl, StreamChannelPtr channel, int peer, std::string peer_name)
      : impl_(impl),
        channel_(std::move(channel)),
        peer_(static_cast<uint16_t>(peer)),
        peer_name_(std::move(peer_name)) {}

  bool reads_arena() const override { return false; }

  std::optional<Ticket> send(uint64_t key, uint64_t offset, Bytes data, bool copy,
                             bool first_in_line) override {
    StreamOutgoing::Piece piece{offset, data, nullptr, 0};
    uint64_t ticket = 0;  // of a copy: released at once
    if (copy) {
      piece.copy = std::make_shared_for_overwrite<std::byte[]>(data.size());
      std::memcpy(piece.copy.get(), data.data(), data.size());
      piece.data = {piece.copy.get(), data.size()};
    }
    {
      std::lock_guard guard(impl_.lock);
      StreamMember& to = member();
      // The other half is for the operation that becomes the oldest (COLLECTIVE-2).
      const size_t most = first_in_line ? 2 * kStreamCopies : kStreamCopies;
      if (copy && to.copies + data.size() > most) return std::nullopt;
      if (copy) to.copies += data.size();
      if (!copy) to.unreleased.insert(ticket = piece.ticket = ++channel_->tickets);
      to.outgoing[key].pieces.push_back(std::move(piece));
      ++to.waiting;
    }
    impl_.wake();
    return Ticket{ticket, 0};
  }

  bool is_released(const Ticket& ticket) override {
    std::lock_guard guard(impl_.lock);
    return !member().unreleased.contains(ticket.id);
  }

  bool drained() override {
    std::lock_guard guard(impl_.lock);
    return member().waiting == 0;
  }

  void expect(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    StreamIncoming& stream = member().incoming[key];
    stream.expected = true;
    if (stream.announced) grant(key, stream);
  }

  Bytes front(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    const auto stream = member().incoming.find(key);
    if (stream == member().incoming.end() || stream->second.pieces.empty()) return {};
    const auto& piece = stream->second.pieces.front();
    return Bytes(reinterpret_cast<const std::byte*>(piece.data.get()), piece.bytes)
        .subspan(piece.at);
  }

  Status pop(uint64_t key, size_t bytes) override {
    std::lock_guard guard(impl_.lock);
    StreamIncoming& stream = member().incoming[key];
    SS_ASSERT(!stream.pieces.empty());
    auto& piece = stream.pieces.front();
    stream.read += bytes;
    piece.at += bytes;
    if (piece.at == piece.bytes) {
      const bool credit = count_as_read(member(), piece.early);
      stream.pieces.pop_front();
      if (credit) give_credit();
    }
    const uint64_t ahead = stream.granted - std::min(stream.read, stream.granted);
    if (stream.announced && ahead <= stream.window / 2) grant(key, stream);
    return {};
  }

  void forget(uint64_t key) override {
    std::lock_guard guard(impl_.lock);
    const auto stream = member().incoming.find(key);
    if (stream == member().incoming.end()) return;
    bool credit = false;
    for (const auto& piece : stream->second.pieces) credit |= count_as_read(member(), piece.early);
    member().incoming.erase(stream);
    if (credit) give_credit();
  }

  Status health(bool) override {
    std::lock_guard guard(impl_.lock);
    if (member().broken.ok()) return {};
    return Status(Code::unavailable, peer_name_ + " " + member().broken.message());
  }

  void notify() override {}

 private:
  StreamMember& member() { return channel_->members[peer_]; }
  // Under the lock:
  void grant(uint64_t key, StreamIncoming& stream) {
    if (std::exchange(stream.granting, true)) return;
    impl_.commands.push_back([impl = &impl_, channel = channel_, from = peer_, key] {
      impl->grant(channel, from, key);
    });
    impl_.wake();
  }
  void give_credit() {
    member().credit_sent = member().early_read;  // one command for each credit
    impl_.commands.push_back(
        [impl = &impl_, channel = channel_, from = peer_] { impl->give_credit(channel, from); });
    impl_.wake();
  }

  StreamWorker::Impl& impl_;
  StreamChannelPtr channel_;
  uint16_t peer_;
  std::string peer_name_;
};

}  // namespace

std::unique_ptr<Link> StreamWorker::link(const ChannelPtr& channel, int peer,
                                         std::string peer_name) {
  return std::make_unique<StreamLink>(*impl_, std::static_pointer_cast<StreamChannel>(channel),
                                      peer, std::move(peer_name));
}

}  // namespace simplescale::collective
