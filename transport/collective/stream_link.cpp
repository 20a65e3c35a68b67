// A link over the stream worker: reads and writes the streams of a channel for the caller. Takes the
// worker's lock and posts commands to its thread.
#include <cstring>
#include <utility>

#include "transport/collective/stream_worker.hpp"

namespace simplescale::collective {

namespace {

class StreamLink final : public RemoteLink<StreamWorker, StreamMember> {
 public:
  using RemoteLink::RemoteLink;

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
      std::lock_guard guard(worker_.lock);
      StreamMember& to = member();
      // The other half is for the operation that becomes the oldest (COLLECTIVE-2).
      const size_t most = first_in_line ? 2 * kStreamCopies : kStreamCopies;
      if (copy && to.copies + data.size() > most) return std::nullopt;
      if (copy) to.copies += data.size();
      if (!copy) to.unreleased.insert(ticket = piece.ticket = ++channel_->tickets);
      to.outgoing[key].pieces.push_back(std::move(piece));
      ++to.waiting;
    }
    worker_.wake();
    return Ticket{ticket, 0};
  }

  bool is_released(const Ticket& ticket) override {
    std::lock_guard guard(worker_.lock);
    return !member().unreleased.contains(ticket.id);
  }

  bool drained() override {
    std::lock_guard guard(worker_.lock);
    return member().waiting == 0;
  }

  void expect(uint64_t key) override {
    std::lock_guard guard(worker_.lock);
    StreamIncoming& stream = member().incoming[key];
    stream.expected = true;
    if (stream.announced) grant(key, stream);
  }

  Bytes front(uint64_t key) override {
    std::lock_guard guard(worker_.lock);
    const auto stream = member().incoming.find(key);
    if (stream == member().incoming.end() || stream->second.pieces.empty()) return {};
    const auto& piece = stream->second.pieces.front();
    return Bytes(reinterpret_cast<const std::byte*>(piece.data.get()), piece.bytes)
        .subspan(piece.at);
  }

  Status pop(uint64_t key, size_t bytes) override {
    std::lock_guard guard(worker_.lock);
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
    std::lock_guard guard(worker_.lock);
    const auto stream = member().incoming.find(key);
    if (stream == member().incoming.end()) return;
    bool credit = false;
    for (const auto& piece : stream->second.pieces) credit |= count_as_read(member(), piece.early);
    member().incoming.erase(stream);
    if (credit) give_credit();
  }

 private:
  // Under the lock:
  void grant(uint64_t key, StreamIncoming& stream) {
    if (std::exchange(stream.granting, true)) return;
    worker_.commands.push_back([worker = &worker_, channel = channel_, from = peer_, key] {
      worker->grant(channel, from, key);
    });
    worker_.wake();
  }
  void give_credit() {
    member().credit_sent = member().early_read;  // one command for each credit
    worker_.commands.push_back([worker = &worker_, channel = channel_, from = peer_] {
      worker->give_credit(channel, from);
    });
    worker_.wake();
  }
};

}  // namespace

std::unique_ptr<Link> StreamWorker::link(const ChannelPtr& channel, int peer,
                                         std::string peer_name) {
  return std::make_unique<StreamLink>(*this, channel, peer, std::move(peer_name));
}

}  // namespace simplescale::collective
