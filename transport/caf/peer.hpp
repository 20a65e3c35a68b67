// What this process knows of one other process. Plain state, touched by the transport thread only
// (except `node`, `name`, which never change).
#pragma once

#include <capnp/common.h>
#include <kj/array.h>

#include <caf/actor_control_block.hpp>
#include <caf/message_id.hpp>
#include <caf/node_id.hpp>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "transport/caf/loop.hpp"
#include "transport/caf/proof.hpp"
#include "transport/ucx/ucx.hpp"

namespace simplescale::remote {

using Words = kj::Array<capnp::word>;

/// A request of a local actor that a remote one has not answered yet.
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

  uint64_t number = 0, established_at_hello = 0;  // meeting.hpp
  bool ours = false;                              // this process called
  bool established = false;
  bool awaiting_proof = false;   // it has called us, and has not shown yet that it has the key
  Nonce nonce = random_nonce();  // ours, of this handshake
  Side hello;                    // a caller's
  bool lost = false;
  bool broken = false;  // nothing can be sent any more, not even a goodbye
  std::unique_ptr<ucx::Endpoint> endpoint;
  uint64_t rx_token;      // what the peer puts in front of its messages
  uint64_t tx_token = 0;  // what we put in front of ours; known once established

  uint64_t tx_sequence = 0;
  uint64_t rx_sequence = 0;        // the next one to be handled
  std::map<uint64_t, Words> held;  // arrived early: a rendezvous before them is still under way
  size_t held_bytes = 0;           // of `held` and of rendezvous under way
  size_t queued_bytes = 0;         // sent, not yet taken by UCX

  Clock::time_point delayed_until{};  // by an injected fault; what comes later queues behind

  bool received_since_tick = false;  // since the last tick
  bool sent_since_tick = false;
  Clock::time_point last_received;

  std::unordered_map<caf::actor_id, caf::strong_actor_ptr>
      proxies;  // actors of the peer, known here
  std::unordered_map<caf::actor_id, caf::strong_actor_ptr> exported;  // actors of ours, known there
  std::unordered_map<RequestKey, Request, RequestKeyHash> requests;
  std::deque<RequestKey> request_order;  // oldest first, answered ones included

  pid_t pid = 0;   // if it is a process that this one can look at; else 0
  int pidfd = -1;  // of it, watched by the loop

  uint32_t logged = 0;  // kinds of bad messages already logged for this peer
};
using PeerPtr = std::shared_ptr<Peer>;

}  // namespace simplescale::remote
