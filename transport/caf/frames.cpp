// Frames: sends envelopes as active messages, and receives them in order and within the limits of
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

namespace simplescale::remote {

namespace {
constexpr size_t kCallerBytesMax = 1024;  // of one message before the peer's proof

/// The trace span of sending or receiving one message. Token and sequence identify the message, so
/// that a reader of both processes' traces can match the two spans. The span has only half of the
/// token: a reader of the trace cannot send messages with it.
trace::Span message_span(trace::Kind kind, wire::Envelope::Reader envelope, size_t bytes,
                         const Peer* peer, uint64_t token, uint64_t sequence) {
  return trace::Span({.number = static_cast<int64_t>(bytes),
                      .a = static_cast<uint32_t>(token),
                      .b = sequence,
                      .kind = kind},
                     name_of(envelope), peer ? peer->name : "");
}
}  // namespace

/// An envelope that UCX is sending.
struct Core::PendingSend {
  FrameHeader header;
  Words words;
  PeerPtr peer;
};

/// An envelope that UCX is receiving by rendezvous.
struct Core::PendingReceive {
  Core* core;
  PeerPtr peer;
  uint64_t sequence;
  Words words;
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
    if (!hello && peer->tx_token != 0) ++peer->tx_sequence;  // the gap tells the peer
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
  if (peer->lost || !peer->endpoint) return;
  if (!hello && peer->tx_token == 0) return;
  auto* pending = new PendingSend{{}, kj::mv(words), peer};
  if (!hello) {
    pending->header.token = peer->tx_token;
    pending->header.sequence = peer->tx_sequence++;
  }
  size_t bytes = pending->words.asBytes().size();
  trace::Span span;
  if (trace::on()) {
    capnp::FlatArrayMessageReader reader(pending->words, reader_options(pending->words.size()));
    span = message_span(trace::Kind::sent, reader.getRoot<wire::Envelope>(), bytes, peer.get(),
                        pending->header.token, pending->header.sequence);
  }
  peer->queued_bytes += bytes;
  peer->sent_since_tick = true;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.user_data = pending;
  params.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* pending = static_cast<PendingSend*>(user_data);
    pending->peer->queued_bytes -= pending->words.asBytes().size();
    delete pending;
    ucp_request_free(request);
  };
  ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->endpoint->handle(), kActiveMessage, &pending->header,
                      sizeof pending->header, pending->words.begin(), bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) {
    peer->queued_bytes -= bytes;
    delete pending;
    if (UCS_PTR_IS_ERR(request)) {
      std::string reason =
          std::string("cannot send: ") + ucs_status_string(UCS_PTR_STATUS(request));
      loop_.post([this, peer, reason]() { disconnect(peer, reason, false); });
      return;
    }
  }
  counters_.sent.fetch_add(1, std::memory_order_relaxed);
  if (peer->queued_bytes > options_.queue_bytes_max) {
    loop_.post(
        [this, peer]() { disconnect(peer, "it does not receive, the send queue is full", false); });
  }
}

ucs_status_t Core::on_active_message(void* self, const void* header, size_t header_bytes,
                                     void* data, size_t bytes, const ucp_am_recv_param_t* param) {
  auto* core = static_cast<Core*>(self);
  FrameHeader frame;
  if (header_bytes != sizeof frame) {
    core->count(Bad::malformed, nullptr, "a frame with a header of another size");
    return UCS_OK;
  }
  std::memcpy(&frame, header, sizeof frame);
  return core->receive_frame(frame, data, bytes,
                             (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t Core::receive_frame(const FrameHeader& frame, void* data, size_t bytes,
                                 bool rendezvous) {
  if (frame.magic != FrameHeader::kMagic) {
    count(Bad::malformed, nullptr, "a frame without the magic number");
    return UCS_OK;
  }
  PeerPtr peer;
  if (frame.token != 0) {
    auto found = by_token_.find(frame.token);
    if (found == by_token_.end()) {
      count(Bad::dropped, nullptr, "a message on a closed connection");
      return UCS_OK;
    }
    peer = found->second;
    if (!rendezvous && draw_loss(*peer)) return UCS_OK;
    // CONNECTION-3: this process buffers nothing for a caller before its proof.
    if (peer->awaiting_proof &&
        (rendezvous || bytes > kCallerBytesMax || frame.sequence != peer->rx_sequence)) {
      count(Bad::malformed, peer.get(), "more than a proof before the handshake's end");
      return UCS_OK;
    }
    // Messages overtake a rendezvous in progress; at most actors_max of them are held.
    if (frame.sequence < peer->rx_sequence ||
        frame.sequence - peer->rx_sequence > options_.actors_max) {
      count(Bad::malformed, peer.get(), "a message out of sequence");
      return UCS_OK;
    }
  }
  if (bytes > options_.message_bytes_max || bytes % sizeof(capnp::word) != 0 || bytes == 0 ||
      (rendezvous && !peer)) {
    count(bytes > options_.message_bytes_max ? Bad::oversized : Bad::malformed, peer.get(),
          "a message of " + std::to_string(bytes) + " bytes");
    if (peer) hold_until_in_order(peer, frame.sequence, nullptr);
    return UCS_OK;  // UCX then drops a rendezvous
  }
  if (rendezvous) {
    receive_rendezvous(peer, frame.sequence, data, bytes);
    return UCS_INPROGRESS;
  }
  size_t count_words = bytes / sizeof(capnp::word);
  if (peer && (frame.sequence != peer->rx_sequence)) {
    auto copy = kj::heapArray<capnp::word>(count_words);
    std::memcpy(copy.begin(), data, bytes);
    hold_until_in_order(peer, frame.sequence, kj::mv(copy));
    return UCS_OK;
  }
  auto* words = static_cast<const capnp::word*>(data);
  if (reinterpret_cast<uintptr_t>(data) % sizeof(capnp::word) != 0) {
    if (aligned_.size() < count_words) aligned_.resize(count_words);
    std::memcpy(aligned_.data(), data, bytes);
    words = aligned_.data();
  }
  if (peer) advance_sequence(*peer);
  handle(peer, kj::arrayPtr(words, count_words));
  if (aligned_.size() > 8192) aligned_ = {};
  if (peer) handle_held(peer);
  return UCS_OK;
}

void Core::receive_rendezvous(const PeerPtr& peer, uint64_t sequence, void* descriptor,
                              size_t bytes) {
  peer->held_bytes += bytes;
  if (peer->held_bytes > options_.queue_bytes_max) {
    loop_.post([this, peer]() { disconnect(peer, "the receive queue is full", false); });
  }
  auto* pending = new PendingReceive{this, peer, sequence,
                                     kj::heapArray<capnp::word>(bytes / sizeof(capnp::word))};
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.user_data = pending;
  params.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    std::unique_ptr<PendingReceive> pending(static_cast<PendingReceive*>(user_data));
    ucp_request_free(request);
    PeerPtr& peer = pending->peer;
    Core* core = pending->core;
    peer->held_bytes -= pending->words.asBytes().size();
    if (peer->lost) return;
    if (status != UCS_OK) {
      core->loop_.post(
          [core, peer]() { core->disconnect(peer, "a large message got lost", false); });
      return;
    }
    core->hold_until_in_order(peer, pending->sequence, kj::mv(pending->words));
  };
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->handle(), descriptor, pending->words.begin(), bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  peer->held_bytes -= bytes;
  delete pending;
  loop_.post([this, peer]() { disconnect(peer, "UCX cannot receive a large message", false); });
}

/// Holds a message until all before it are handled. `words` may be null: the message was discarded
/// and only its sequence number counts.
void Core::hold_until_in_order(const PeerPtr& peer, uint64_t sequence, Words words) {
  size_t bytes = words.asBytes().size();
  if (peer->held.emplace(sequence, kj::mv(words)).second) peer->held_bytes += bytes;
  if (peer->held_bytes > options_.queue_bytes_max) {
    loop_.post([this, peer]() { disconnect(peer, "too many messages out of order", false); });
  }
  handle_held(peer);
}

/// Counts the message as handled, and as a sign of life. Messages after a lost one are never
/// handled, so that the peer counts as silent and its connection ends, which tells its monitors.
void Core::advance_sequence(Peer& peer) {
  ++peer.rx_sequence;
  peer.received_since_tick = peer.established;
}

void Core::handle_held(const PeerPtr& peer) {
  while (!peer->lost && !peer->held.empty() && peer->held.begin()->first == peer->rx_sequence) {
    Words words = kj::mv(peer->held.begin()->second);
    peer->held.erase(peer->held.begin());
    peer->held_bytes -= words.asBytes().size();
    advance_sequence(*peer);
    if (words.size() != 0) handle(peer, words);
  }
}

void Core::handle(const PeerPtr& peer, kj::ArrayPtr<const capnp::word> words) {
  counters_.received.fetch_add(1, std::memory_order_relaxed);
  try {
    capnp::FlatArrayMessageReader reader(words, reader_options(words.size()));
    auto envelope = reader.getRoot<wire::Envelope>();
    trace::Span span;
    if (trace::on())
      span = message_span(trace::Kind::received, envelope, words.asBytes().size(), peer.get(),
                          peer ? peer->rx_token : 0, peer ? peer->rx_sequence - 1 : 0);
    if (peer) {
      dispatch(peer, envelope);
    } else if (envelope.isHello()) {
      handle_hello(envelope.getHello());
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
  log::log(kind == Bad::dropped ? log::level::debug : log::level::warn,
           "transport: {} {}: {} (logged once, always counted)",
           peer ? peer->name : "an unknown process", kNames[static_cast<size_t>(kind)], what);
}

}  // namespace simplescale::remote
