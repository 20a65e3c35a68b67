// The state of one connection with another process. Plain data. Used by the transport thread only,
// except `node` and `name`, which never change.
#pragma once

#include <capnp/common.h>
#include <kj/array.h>

#include <caf/actor_control_block.hpp>
#include <caf/message_id.hpp>
#include <caf/node_id.hpp>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "transport/caf/loop.hpp"
#include "transport/caf/proof.hpp"
#include "transport/stream/messenger.hpp"

namespace simplescale::remote {

using Words = kj::Array<capnp::word>;

/// A request of a local actor that a remote actor has not answered yet.
struct RequestKey {
  caf::actor_id requester = 0;
  uint64_t id = 0;  // the request number without flags
  bool operator==(const RequestKey&) const = default;
};
struct RequestKeyHash {
  size_t operator()(const RequestKey& key) const {
    return (key.requester * 0x9E3779B97F4A7C15ull) ^ key.id;
  }
};
struct Request {
  caf::actor_id receiver = 0;
  caf::message_id id;
};

/// "process PID (HASH)", for logs.
std::string short_name(const caf::node_id& node);

struct Peer {
  Peer(caf::node_id id, uint64_t token)
      : node(std::move(id)), name(short_name(node)), rx_token(token) {}

  const caf::node_id node;
  const std::string name;

  uint64_t number = 0, established_at_hello = 0;  // see connection_tiebreak.hpp
  bool ours = false;                              // this process is the caller
  bool established = false;
  bool awaiting_proof = false;   // the peer is the caller and has not sent its proof yet
  Nonce nonce = random_nonce();  // this process's, for this handshake
  Side hello;                    // the caller's, if the peer is the caller
  bool lost = false;
  bool broken = false;    // nothing can be sent, not even a goodbye
  stream::LinkPtr link;   // null: the connection has ended
  uint64_t rx_token;      // in the frames from the peer
  uint64_t tx_token = 0;  // in the frames to the peer; 0 until its hello or welcome

  uint64_t tx_sequence = 0;
  uint64_t rx_sequence = 0;  // of the next message to handle
  size_t queued_bytes = 0;   // of messages that the socket has not taken yet

  Clock::time_point delayed_until{};  // by an injected fault; later messages wait, too

  bool received_since_tick = false;
  bool sent_since_tick = false;
  Clock::time_point last_received;

  // The peer's actors that this process knows, and this process's actors that the peer knows; by
  // id.
  std::unordered_map<caf::actor_id, caf::strong_actor_ptr> proxies, exported;
  std::unordered_map<RequestKey, Request, RequestKeyHash> requests;
  std::deque<RequestKey> request_order;  // oldest first; may have answered ones

  pid_t pid = 0;   // the peer's, if it is in this process's pid namespace; else 0
  int pidfd = -1;  // of `pid`; watched by the loop

  uint32_t logged = 0;  // bit mask of the kinds of bad messages that were logged for this peer
};
using PeerPtr = std::shared_ptr<Peer>;

}  // namespace simplescale::remote
