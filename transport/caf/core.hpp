// The control plane of one process: its peers, the handshake with them, and the messages between
// actors. All state belongs to the transport thread; functions marked "any thread" post to it.
//
//   CONNECTION-1  The first message to a peer that names an actor exports the actor to that peer.
//                 From then on the peer is told when the actor ends. So every proxy learns of its
//                 actor's end, without monitor messages.
//   CONNECTION-2  A lost peer is forgotten at once and completely: socket, proxies, requests. If
//                 the process comes back, it shakes hands again with new tokens. Messages with an
//                 old token are dropped.
//   CONNECTION-3  A process becomes a peer by proving that it has the run's key (proof.hpp): hello,
//                 welcome with a proof, proof. Until then this process handles no other message
//                 from it, does not let it replace a peer, and ends its connection after a time
//                 limit. Each connection belongs to one peer, and carries only that peer's messages:
//                 a message with an unknown token ends it.
#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <caf/error.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <mutex>
#include <optional>
#include <set>
#include <span>

#include "transport/caf/address.hpp"
#include "transport/caf/loop.hpp"
#include "transport/caf/peer.hpp"
#include "transport/caf/transport.hpp"
#include "transport/protocol/protocol.capnp.h"
#include "transport/protocol/reason.hpp"

namespace simplescale::remote {

/// The header of the message, before each envelope. In native byte order, which all machines of a
/// run have in common.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x31537353;  // "SsS1"
  uint32_t magic = kMagic;
  uint32_t reserved = 0;
  uint64_t token = 0;     // chosen by the receiver; 0 in a hello
  uint64_t sequence = 0;  // from 0, for each connection and direction
};

enum class Bad : uint8_t { malformed, unknown, oversized, unsupported, dropped };

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(caf::actor_system& system, TransportOptions options);

  // ---- any thread ----
  /// Sends the message that a proxy received. Answers requests that cannot be sent with an error.
  void send(const PeerPtr& peer, caf::actor_id receiver, caf::mailbox_element_ptr element);
  void link(const PeerPtr& peer, caf::strong_actor_ptr local, caf::actor_id remote, bool on);
  void local_actor_ended(const PeerPtr& peer, caf::actor_id actor, const caf::error& reason);
  void publish(const std::string& name, caf::actor actor);
  void lookup(const std::string& address, const std::string& name, int timeout_ms,
              Transport::OnLookup on_done);
  void on_peer_lost(Transport::OnPeerLost callback);
  void peer_is_dead(const caf::node_id& node, const std::string& reason);
  TransportCounters counters() const;
  void inject(TransportFault fault);
  void stop();

  // ---- the transport thread ----
  /// The thread's function. Calls `ready` once, with this process's address or the error of the
  /// start.
  void run(const std::function<void(Result<std::string>)>& ready);

 private:
  struct PendingSend;
  struct Outgoing;
  /// The encoding of the newest large message with several receivers, so that it is encoded only
  /// once.
  struct Encoded {
    caf::message content;
    caf::actor_id sender = 0;
    uint64_t id = 0;
    Words words;
  };
  struct Lookup {
    PeerPtr peer;
    std::string name;
    Transport::OnLookup on_done;
  };

  // handshake (handshake.cpp)
  Result<PeerPtr> connect(const Address& address);
  PeerPtr current_peer(const caf::node_id& node) const;
  bool lower_than(const caf::node_id& node) const;
  void replace_peer(const PeerPtr& from, const PeerPtr& to, const std::string& reason);
  PeerPtr make_peer(const caf::node_id& node);
  void watch_process(const PeerPtr& peer);
  Side our_side(const Peer& peer) const;
  void attach(const PeerPtr& peer, const stream::LinkPtr& link);
  void establish(const PeerPtr& peer);
  void make_current(const PeerPtr& peer);
  void disconnect(const PeerPtr& peer, const Reason& reason, bool expected);
  void drop_caller(const stream::LinkPtr& link, Bad kind, const std::string& what);
  void refuse(const stream::LinkPtr& link, uint64_t token, const std::string& reason);
  void fill_hello(wire::Hello::Builder out, const Peer& peer);
  void handle_hello(const stream::LinkPtr& link, wire::Hello::Reader in);
  void handle_welcome(const PeerPtr& peer, wire::Hello::Reader in);
  void handle_proof(const PeerPtr& peer, capnp::Data::Reader proof);
  // disconnecting, heartbeats, lookups (core.cpp)
  void tick();
  std::optional<Reason> silence_reason(const Peer& peer, Clock::time_point now) const;
  void start_ticking();
  void begin_lookup(Address address, std::string name, int timeout_ms, Transport::OnLookup on_done);
  void send_lookup(uint64_t id, const Lookup& lookup);
  void end_lookup(uint64_t id, Result<caf::actor> result);
  void shut_down();

  // frames (frames.cpp)
  void on_message(const stream::LinkPtr& link, const stream::Incoming& message);
  void on_end(const stream::LinkPtr& link, stream::End end, const std::string& why);
  void receive_frame(const stream::LinkPtr& link, const FrameHeader& frame,
                     const stream::Incoming& message);
  void unknown_token(const stream::LinkPtr& link, const PeerPtr& peer);
  void advance_sequence(Peer& peer);
  void handle(const stream::LinkPtr& link, const PeerPtr& peer,
              kj::ArrayPtr<const capnp::word> words);
  void transmit(const PeerPtr& peer, Words words, bool hello = false);
  void transmit_now(const PeerPtr& peer, Words words, bool hello);
  bool fault_applies_to(const Peer& peer) const;
  bool draw_loss(const Peer& peer);
  void count(Bad kind, Peer* peer, const std::string& what);

  // actor traffic (traffic.cpp)
  void send_now(const PeerPtr& peer, Outgoing out);
  bool encode(const PeerPtr& peer, caf::actor_id receiver, caf::mailbox_element& element,
              Outgoing& out);
  Words encode_message(const caf::mailbox_element& element, caf::actor_id sender,
                       caf::actor_id receiver, bool& allowed);
  void export_actor(const PeerPtr& peer, const caf::strong_actor_ptr& actor);
  caf::strong_actor_ptr proxy(const PeerPtr& peer, caf::actor_id actor);
  void dispatch(const PeerPtr& peer, wire::Envelope::Reader envelope);
  void handle_message(const PeerPtr& peer, wire::Message::Reader in);
  void handle_exit(const PeerPtr& peer, wire::Exit::Reader in);
  void handle_down(const PeerPtr& peer, wire::Down::Reader in);
  void handle_link(const PeerPtr& peer, wire::Link::Reader in, bool on);
  void handle_lookup(const PeerPtr& peer, wire::Lookup::Reader in);
  void handle_found(const PeerPtr& peer, wire::Found::Reader in);
  void answer_error(const PeerPtr& peer, caf::actor_id requester, caf::message_id request,
                    const caf::error& error);

  caf::actor_system& system_;
  const TransportOptions options_;
  Loop loop_;

  std::mutex encoded_mutex_;  // guards encoded_: senders encode on their own threads
  Encoded encoded_;

  std::unique_ptr<stream::Messenger> messenger_;
  std::unordered_map<const stream::Link*, PeerPtr> by_link_;
  std::unordered_map<caf::node_id, PeerPtr> peers_;
  std::unordered_map<uint64_t, PeerPtr> by_token_;
  std::unordered_map<std::string, caf::actor> published_;
  std::unordered_map<uint64_t, Lookup> lookups_;
  uint64_t last_lookup_ = 0;
  std::vector<Transport::OnPeerLost> on_peer_lost_;
  std::set<std::string> unsupported_logged_;
  uint32_t logged_ = 0;  // kinds of bad messages of unknown processes that were logged
  int refusals_logged_ = 0;
  uint64_t connections_ = 0;  // how many were made so far
  bool ticking_ = false;
  bool stopping_ = false;
  Clock::time_point last_tick_;
  TransportFault fault_;  // injected, until fault_ends_
  Clock::time_point fault_ends_{};
  uint64_t fault_draws_ = 0;

  struct {
    std::atomic<uint64_t> sent{0}, received{0}, bad[5]{};
  } counters_;
};

}  // namespace simplescale::remote
