// Frames: sends envelopes over the messenger, and receives them in order and within the limits of
// TransportOptions. Runs on the transport thread.
#include <algorithm>
#include <caf/all.hpp>
#include <cstring>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/proof.hpp"

namespace simplescale::remote {

namespace {
constexpr size_t kCallerBytesMax = 1024;  // longest message before the peer's proof

/// The trace span of sending or receiving one message. The token's name and the sequence identify
/// the message, so a reader of both processes' traces can match the two spans.
trace::Span message_span(trace::Kind kind, wire::Envelope::Reader envelope, size_t bytes,
                         const Peer* peer, uint32_t token, uint64_t sequence) {
  return trace::Span(
      {.number = static_cast<int64_t>(bytes), .a = token, .b = sequence, .kind = kind},
      name_of(envelope), peer ? peer->name : "");
}
}  // namespace

/// An envelope that waits until the socket has taken it.
struct Core::PendingSend {
  PendingSend(Words content, PeerPtr to) : words(kj::mv(content)), peer(std::move(to)) {
    peer->queued_bytes += words.asBytes().size();
  }
  ~PendingSend() { peer->queued_bytes -= words.asBytes().size(); }
  PendingSend(const PendingSend&) = delete;
  PendingSend& operator=(const PendingSend&) = delete;
  const Words words;
  const PeerPtr peer;
};

/// True if an injected fault is active and does not spare this peer.
bool Core::fault_applies_to(const Peer& peer) const {
  return Clock::now() < fault_ends_ &&
         (peer.pid == 0 || std::ranges::find(fault_.spared, peer.pid) == fault_.spared.end());
}

/// True if the injected fault drops this message. The sequence of draws is the same in every run.
bool Core::draw_loss(const Peer& peer) {
  if (fault_.lose <= 0 || !fault_applies_to(peer)) return false;
  // A partial loss spares the handshake; a full loss (a partition) does not.
  if (!peer.established && fault_.lose < 1) return false;
  const uint64_t draw = ++fault_draws_;
  const uint64_t hash = hash128(&draw, sizeof draw).low;
  return static_cast<double>(hash >> 11) * 0x1p-53 < fault_.lose;
}

void Core::transmit(const PeerPtr& peer, Words words, bool hello) {
  if (draw_loss(*peer)) {
    if (!hello && peer->tx_token != 0) ++peer->tx_sequence;  // the peer notices the gap
    return;
  }
  const auto now = Clock::now();
  if (fault_.delay_ms > 0 && fault_applies_to(*peer))
    peer->delayed_until =
        std::max(peer->delayed_until, now + std::chrono::milliseconds(fault_.delay_ms));
  if (now >= peer->delayed_until) return transmit_now(peer, kj::mv(words), hello);
  loop_.call_at(peer->delayed_until, [this, peer, hello, words = kj::mv(words)]() mutable {
    transmit_now(peer, kj::mv(words), hello);
  });
}

void Core::transmit_now(const PeerPtr& peer, Words words, bool hello) {
  if (peer->lost || !peer->link) return;
  if (!hello && peer->tx_token == 0) return;
  FrameHeader header;
  if (!hello) {
    header.token = peer->tx_token;
    header.sequence = peer->tx_sequence++;
  }
  const auto pending = std::make_shared<PendingSend>(kj::mv(words), peer);
  const auto bytes = pending->words.asBytes();
  trace::Span span;
  if (trace::on()) {
    capnp::FlatArrayMessageReader reader(pending->words, reader_options(pending->words.size()));
    span = message_span(trace::Kind::sent, reader.getRoot<wire::Envelope>(), bytes.size(),
                        peer.get(), name_of_token(options_.key, header.token), header.sequence);
  }
  peer->sent_since_tick = true;
  messenger_->send(peer->link, {reinterpret_cast<const uint8_t*>(&header), sizeof header},
                   {bytes.begin(), bytes.size()}, pending);
  counters_.sent.fetch_add(1, std::memory_order_relaxed);
  if (peer->queued_bytes > options_.queue_bytes_max) {
    loop_.post([this, peer]() {
      disconnect(peer, {"it does not receive, the send queue is full"}, false);
    });
  }
}

void Core::on_message(const stream::LinkPtr& link, const stream::Incoming& message) {
  FrameHeader frame;
  if (message.header_bytes != sizeof frame)
    return count(Bad::malformed, nullptr, "a frame with a header of another size");
  std::memcpy(&frame, message.header.data(), sizeof frame);
  if (frame.magic != FrameHeader::kMagic)
    return count(Bad::malformed, nullptr, "a frame without the magic number");
  receive_frame(link, frame, message);
}

void Core::on_end(const stream::LinkPtr& link, stream::End end, const std::string& why) {
  const auto found = by_link_.find(link.get());
  const PeerPtr peer = found == by_link_.end() ? nullptr : found->second;
  if (end != stream::End::lost)
    count(end == stream::End::stranger ? Bad::dropped : Bad::malformed, peer.get(),
          "a connection with " + link->name() + ": " + why);
  if (!peer) return;
  peer->broken = true;
  disconnect(peer, connection_lost(why), false);
}

void Core::receive_frame(const stream::LinkPtr& link, const FrameHeader& frame,
                         const stream::Incoming& message) {
  const auto found = by_link_.find(link.get());
  PeerPtr peer = found == by_link_.end() ? nullptr : found->second;
  if (frame.token != (peer ? peer->rx_token : 0)) {
    if (frame.token == 0)
      return count(Bad::malformed, peer.get(), "a hello on a connection that has had one");
    return unknown_token(link, peer);
  }
  if (peer) {
    if (draw_loss(*peer)) return;
    // CONNECTION-3: a caller sends nothing before its proof.
    if (peer->awaiting_proof &&
        (message.bytes > kCallerBytesMax || frame.sequence != peer->rx_sequence))
      return count(Bad::malformed, peer.get(), "more than a proof before the handshake's end");
    if (frame.sequence < peer->rx_sequence)
      return count(Bad::malformed, peer.get(), "a message out of sequence");
    // After a lost message, handle no further message. The peer then counts as silent, its
    // connection ends, and its monitors get `down`.
    if (frame.sequence > peer->rx_sequence) return;
    advance_sequence(*peer);
  }
  if (!message.data || message.bytes % sizeof(capnp::word) != 0)
    return count(message.bytes > options_.message_bytes_max ? Bad::oversized : Bad::malformed,
                 peer.get(), "a message of " + std::to_string(message.bytes) + " bytes");
  const auto* words = reinterpret_cast<const capnp::word*>(message.data.get());
  handle(link, peer, kj::arrayPtr(words, message.bytes / sizeof(capnp::word)));
}

/// A process of the run sends no unknown token: a connection has one token in each direction. A
/// hostile process can guess only one token for each connection that it makes.
void Core::unknown_token(const stream::LinkPtr& link, const PeerPtr& peer) {
  const std::string what = "a message with an unknown token";
  if (!peer) return drop_caller(link, Bad::malformed, what);
  count(Bad::malformed, peer.get(), what);
  disconnect(peer, {"it sent " + what}, false);
}

/// Counts the message as handled, and as a sign that the peer lives.
void Core::advance_sequence(Peer& peer) {
  ++peer.rx_sequence;
  peer.received_since_tick = peer.established;
}

void Core::handle(const stream::LinkPtr& link, const PeerPtr& peer,
                  kj::ArrayPtr<const capnp::word> words) {
  counters_.received.fetch_add(1, std::memory_order_relaxed);
  try {
    capnp::FlatArrayMessageReader reader(words, reader_options(words.size()));
    auto envelope = reader.getRoot<wire::Envelope>();
    trace::Span span;
    if (trace::on())
      span = message_span(trace::Kind::received, envelope, words.asBytes().size(), peer.get(),
                          name_of_token(options_.key, peer ? peer->rx_token : 0),
                          peer ? peer->rx_sequence - 1 : 0);
    if (peer) {
      dispatch(peer, envelope);
    } else if (envelope.isHello()) {
      handle_hello(link, envelope.getHello());
    } else {
      count(Bad::malformed, nullptr, "a message before any hello");
    }
  } catch (const kj::Exception& e) {
    count(Bad::malformed, peer.get(), e.getDescription().cStr());
  }
}

void Core::count(Bad kind, Peer* peer, const std::string& what) {
  static constexpr const char* kNames[] = {"malformed", "unknown", "oversized", "unsupported",
                                           "dropped"};
  counters_.bad[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  uint32_t& logged = peer ? peer->logged : logged_;
  uint32_t bit = 1u << static_cast<unsigned>(kind);
  // Log unsupported messages once per type: each is a bug in this program.
  if (kind == Bad::unsupported ? !unsupported_logged_.insert(what).second : (logged & bit) != 0) {
    return;
  }
  logged |= bit;
  // A dropped message is normal: its receiver or requester has ended.
  log::line(kind == Bad::dropped ? log::Level::debug : log::Level::warn,
            "transport: {} {}: {} (logged once, always counted)",
            peer ? peer->name : "an unknown process", kNames[static_cast<size_t>(kind)], what);
}

}  // namespace simplescale::remote
