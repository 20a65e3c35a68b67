// The stream worker's messages: sending and receiving. Runs on the worker's thread.
#include <sodium.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/collective/stream_worker.hpp"

namespace simplescale::collective {

namespace {

constexpr size_t kIdleStreams = 64;  // of a member, whose grants are remembered

StreamHeader header_of(const StreamChannel& channel, StreamKind kind, uint16_t to, uint64_t key,
                       uint64_t offset) {
  return {kind,
          static_cast<uint16_t>(channel.rank),
          to,
          channel.generation,
          channel.name_hash,
          key,
          offset,
          channel.secret};
}

std::span<const uint8_t> bytes_of_header(const StreamHeader& header) {
  return {reinterpret_cast<const uint8_t*>(&header), sizeof header};
}

}  // namespace

// --- Sending ---

void StreamWorker::send_control(StreamKind kind, const StreamChannelPtr& channel, uint16_t to,
                                uint64_t key, uint64_t offset) {
  const auto found = connections.find(channel->members[to].id);
  if (found == connections.end() || !found->second.link) return;
  const StreamHeader header = header_of(*channel, kind, to, key, offset);
  messenger->send(found->second.link, bytes_of_header(header), {}, nullptr);
}

/// Sends what may be sent. The members take turns, so that none starves.
bool StreamWorker::pump() {
  const std::vector<Target> targets =
      members_that([](const StreamMember& m) { return m.waiting > 0 && m.is_joined(); });
  bool any = false;
  ++turn;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[(turn + i) % targets.size()];
    const auto found = connections.find(target.first->members[target.second].id);
    if (found != connections.end() && found->second.link) any |= pump(target, found->second.link);
  }
  return any;
}

/// Sends chunks to one member while its connection takes them; at most a few in a round.
bool StreamWorker::pump(const Target& target, const stream::LinkPtr& link) {
  constexpr int kChunks = 8;
  const auto& [channel, to] = target;
  bool any = false;
  for (int i = 0; i < kChunks && messenger->takes_more(link); ++i) {
    std::optional<Chunk> chunk = take_chunk(channel, to);
    if (!chunk) break;
    any = true;
    // Without an owner, the data must be encrypted before send() returns.
    if (!chunk->owner && !chunk->data.empty() &&
        (chunk->data.size() < stream::kWriteAtOnce || !messenger->is_idle(link))) {
      auto copy = std::make_shared_for_overwrite<std::byte[]>(chunk->data.size());
      std::memcpy(copy.get(), chunk->data.data(), chunk->data.size());
      chunk->data = {copy.get(), chunk->data.size()};
      chunk->owner = std::move(copy);
    }
    messenger->send(link, bytes_of_header(chunk->header),
                    {reinterpret_cast<const uint8_t*>(chunk->data.data()), chunk->data.size()},
                    chunk->owner);
    if (chunk->ticket == 0) continue;
    {
      std::lock_guard guard(lock);
      channel->members[to].unreleased.erase(chunk->ticket);
    }
    ring();
  }
  return any;
}

/// The oldest operation comes first. Nothing: all that waits needs a grant.
std::optional<StreamWorker::Chunk> StreamWorker::take_chunk(const StreamChannelPtr& channel,
                                                            uint16_t to) {
  std::lock_guard guard(lock);
  StreamMember& member = channel->members[to];
  for (auto at = member.outgoing.begin(); at != member.outgoing.end(); ++at) {
    auto& [key, stream] = *at;
    if (stream.pieces.empty()) continue;
    StreamOutgoing::Piece& piece = stream.pieces.front();
    const uint64_t offset = piece.offset + piece.sent;
    size_t bytes = std::min(piece.data.size() - piece.sent, kStreamChunk);
    StreamKind kind = StreamKind::data;
    if (offset < stream.granted) {
      bytes = std::min<size_t>(bytes, stream.granted - offset);
    } else if (piece.copy && !stream.announced &&
               member.early_sent + bytes <= member.early_credit + kStreamEarly) {
      kind = StreamKind::early;
      member.early_sent += bytes;
    } else if (!std::exchange(stream.announced, true)) {
      return Chunk{header_of(*channel, StreamKind::announce, to, key, offset), {}, nullptr};
    } else {
      continue;
    }
    Chunk chunk{header_of(*channel, kind, to, key, offset), piece.data.subspan(piece.sent, bytes),
                piece.copy};
    piece.sent += bytes;
    if (piece.sent < piece.data.size()) return chunk;
    chunk.ticket = piece.ticket;
    if (piece.copy) member.copies -= piece.data.size();
    --member.waiting;
    stream.pieces.pop_front();
    if (stream.pieces.empty() && !stream.announced) member.outgoing.erase(at);
    if (member.outgoing.size() > kIdleStreams) {
      const auto idle = std::ranges::find_if(member.outgoing,
                                             [](const auto& s) { return s.second.pieces.empty(); });
      if (idle != member.outgoing.end()) member.outgoing.erase(idle);
    }
    return chunk;
  }
  return std::nullopt;
}

// --- Receiving ---

void StreamWorker::on_message(const stream::LinkPtr& link, stream::Incoming& message) {
  StreamHeader header;
  const auto known = by_link.find(link.get());
  if (message.header_bytes != sizeof header) return messenger->close(link), on_end(link, "garbage");
  std::memcpy(&header, message.header.data(), sizeof header);
  if (known == by_link.end()) {
    if (header.kind != StreamKind::greeting) return messenger->close(link);
    return on_greeting(link, message);
  }
  Connection& connection = connections[known->second];
  connection.asked.reset();
  if (header.kind == StreamKind::greeting) return;
  StreamChannelPtr channel;
  {
    std::lock_guard guard(lock);
    const auto found = channels.find({header.generation, header.name_hash});
    if (found != channels.end()) channel = found->second;
  }
  if (!channel) {                                       // of another generation: dropped
    if (header.kind == StreamKind::hello) greet(link);  // "alive, but has not joined yet"
    return;
  }
  if (sodium_memcmp(header.secret.data(), channel->secret.data(), sizeof(Secret)) != 0 ||
      header.from >= channel->members.size() || header.to != channel->rank ||
      channel->members[header.from].id != known->second)
    return;  // not of a member: dropped
  receive(channel, channel->members[header.from], header, message);
}

/// A message from a member, over its connection.
void StreamWorker::receive(const StreamChannelPtr& channel, StreamMember& member,
                           const StreamHeader& header, stream::Incoming& message) {
  std::unique_lock guard(lock);
  switch (header.kind) {
    case StreamKind::hello: {
      const bool lost = !member.broken.ok(), joined = member.acknowledged;
      guard.unlock();
      if (lost) return send_control(StreamKind::bye, channel, header.from);
      send_control(StreamKind::acknowledge, channel, header.from);
      if (!joined) send_control(StreamKind::hello, channel, header.from);
      return;
    }
    case StreamKind::acknowledge:
      member.acknowledged = true;
      break;
    case StreamKind::bye:
      member.fail("has left the communicator");
      break;
    case StreamKind::announce: {
      if (!member.incoming.contains(header.key) && member.incoming.size() >= kStreamsMax) {
        member.fail("has announced too many streams");
        break;
      }
      StreamIncoming& stream = member.incoming[header.key];
      stream.announced = true;
      if (!stream.expected) return;
      guard.unlock();
      return grant(channel, header.from, header.key);
    }
    case StreamKind::grant: {
      const auto stream = member.outgoing.find(header.key);
      if (stream != member.outgoing.end())
        stream->second.granted = std::max(stream->second.granted, header.offset);
      return;  // pump() follows
    }
    case StreamKind::credit:
      if (header.offset <= member.early_sent)
        member.early_credit = std::max(member.early_credit, header.offset);
      return;
    case StreamKind::early:
    case StreamKind::data:
      receive_piece(member, header, message);
      break;
    default:
      return;
  }
  guard.unlock();
  ring();
}

/// COLLECTIVE-3. Under the lock.
void StreamWorker::receive_piece(StreamMember& member, const StreamHeader& header,
                                 stream::Incoming& message) {
  if (!member.broken.ok() || message.bytes == 0) return;
  if (!message.data) return member.fail("has sent a piece that is too large");
  const bool early = header.kind == StreamKind::early;
  const auto found = member.incoming.find(header.key);
  const uint64_t received = found == member.incoming.end() ? 0 : found->second.received;
  if (header.offset != received) return member.fail("has sent a piece that is not the next one");
  if (early) {
    if (member.early_held + message.bytes > kStreamEarly ||
        (found == member.incoming.end() && member.incoming.size() >= kStreamsMax))
      return member.fail("has sent too much before it was expected");
    member.early_held += message.bytes;
  } else if (found == member.incoming.end() || received + message.bytes > found->second.granted) {
    return member.fail("has sent what nobody has granted");
  }
  StreamIncoming& stream = member.incoming[header.key];
  stream.received += message.bytes;
  stream.add(std::move(message.data), message.bytes, early);
}

void StreamIncoming::add(std::unique_ptr<uint64_t[]> data, size_t bytes, bool early) {
  const size_t early_bytes = early ? bytes : 0;
  // A reader may hold the first piece.
  if (pieces.size() < 2 || pieces.back().bytes + bytes > kStreamSmall) {
    pieces.push_back({std::move(data), bytes, early_bytes, bytes});
    return;
  }
  Piece& last = pieces.back();
  if (last.bytes + bytes > last.capacity) {
    last.capacity = std::bit_ceil(last.bytes + bytes);
    auto larger = std::make_unique_for_overwrite<uint64_t[]>((last.capacity + 7) / 8);
    std::memcpy(larger.get(), last.data.get(), last.bytes);
    last.data = std::move(larger);
  }
  std::memcpy(reinterpret_cast<std::byte*>(last.data.get()) + last.bytes, data.get(), bytes);
  last.bytes += bytes;
  last.early += early_bytes;
}

/// Lets a member send more of a stream, within its budget.
void StreamWorker::grant(const StreamChannelPtr& channel, uint16_t from, uint64_t key) {
  uint64_t up_to;
  {
    std::lock_guard guard(lock);
    StreamMember& member = channel->members[from];
    const auto found = member.incoming.find(key);
    if (found == member.incoming.end()) return;
    StreamIncoming& stream = found->second;
    stream.granting = false;
    if (!stream.expected || !stream.announced) return;
    size_t others = 0;
    for (const auto& [other, state] : member.incoming)
      if (other != key && state.granted > state.read) others += state.granted - state.read;
    const size_t left = kStreamBudget - std::min(others, kStreamBudget);
    stream.window = std::clamp(left, kStreamWindowMin, kStreamWindow);
    stream.granted = std::max(stream.granted, stream.read + stream.window);
    up_to = stream.granted;
  }
  send_control(StreamKind::grant, channel, from, key, up_to);
}

bool count_as_read(StreamMember& member, size_t early) {
  if (early == 0) return false;
  member.early_held -= early;
  member.early_read += early;
  return member.early_read - member.credit_sent >= kStreamEarly / 8;
}

void StreamWorker::give_credit(const StreamChannelPtr& channel, uint16_t from) {
  uint64_t in_all;
  {
    std::lock_guard guard(lock);
    StreamMember& member = channel->members[from];
    in_all = member.credit_sent = member.early_read;
  }
  send_control(StreamKind::credit, channel, from, 0, in_all);
}

}  // namespace simplescale::collective
