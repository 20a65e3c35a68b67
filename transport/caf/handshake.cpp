// The handshake between two processes (CONNECTION-3). Runs on the transport thread.
//
//   caller -> callee   hello                 its address and a fresh nonce
//   callee -> caller   welcome with a proof  shows that the callee has the run's key
//   caller -> callee   proof                 shows that the caller has it; messages may follow
//
// Each proof covers all that both sides have sent so far, including nonces and addresses, so a
// recorded handshake cannot be replayed. connection_tiebreak.hpp decides between two connections.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>

#include "runtime/base/log.hpp"
#include "transport/caf/connection_tiebreak.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/envelope.hpp"

namespace simplescale::remote {
namespace {

constexpr size_t kAddressBytesMax = 1024;

std::span<const uint8_t> to_span(capnp::Data::Reader data) {
  return {data.begin(), data.size()};
}

/// The sender of a hello or welcome; nothing if it is malformed.
std::optional<Side> side_of(wire::Hello::Reader in) {
  const auto node = to_span(in.getNode()), address = to_span(in.getAddress()),
             nonce = to_span(in.getNonce());
  if (in.getToken() == 0 || address.empty() || address.size() > kAddressBytesMax ||
      !node_from_bytes(node))
    return std::nullopt;
  Side side{{node.begin(), node.end()}, in.getToken(), {}, {address.begin(), address.end()}};
  // A process of another version may send another nonce; the caller then refuses it with the
  // version.
  if (in.getVersion() == wire::PROTOCOL_VERSION && nonce.size() != kNonceBytes) return std::nullopt;
  if (nonce.size() == kNonceBytes) std::ranges::copy(nonce, side.nonce.begin());
  return side;
}

std::optional<Connection> connection_of(const PeerPtr& peer) {
  if (!peer) return std::nullopt;
  return Connection{peer->number, peer->ours, peer->established};
}

const Connection* pointer(const std::optional<Connection>& connection) {
  return connection ? &*connection : nullptr;
}

}  // namespace

/// The current connection with that process: established, or waiting for a welcome. Null: none.
PeerPtr Core::current_peer(const caf::node_id& node) const {
  const auto found = peers_.find(node);
  return found == peers_.end() ? nullptr : found->second;
}

bool Core::lower_than(const caf::node_id& node) const {
  return node_to_bytes(system_.node()) < node_to_bytes(node);
}

PeerPtr Core::make_peer(const caf::node_id& node) {
  auto peer = std::make_shared<Peer>(node, random_token());
  peer->number = ++connections_;
  peer->last_received = Clock::now();
  peer->pid = visible_pid(system_.node(), node);
  by_token_[peer->rx_token] = peer;
  return peer;
}

/// Disconnects as soon as the peer's process ends, if that process is visible here. Its socket may
/// stay open, because a child of the process may still hold it.
void Core::watch_process(const PeerPtr& peer) {
  if (peer->pid != 0) peer->pidfd = static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0));
  if (peer->pidfd < 0) return;
  fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
  loop_.when_readable(peer->pidfd, [this, weak = std::weak_ptr<Peer>(peer)] {
    auto peer = weak.lock();
    if (!peer) return;
    peer->broken = true;
    disconnect(peer, process_ended(), false);
  });
}

/// From now on the link carries only this peer's messages.
void Core::attach(const PeerPtr& peer, const stream::LinkPtr& link) {
  peer->link = link;
  by_link_[link.get()] = peer;
}

Result<PeerPtr> Core::connect(const Address& address) {
  if (auto known = current_peer(address.node)) return known;
  if (peers_.size() >= options_.peers_max) return Status(Code::unavailable, "too many peers");
  auto peer = make_peer(address.node);
  peer->ours = true;
  make_current(peer);
  const auto link = messenger_->connect(address.worker);
  if (!link.ok()) {
    disconnect(peer, {link.status().message()}, false);
    return Status(Code::unavailable, link.status().message());
  }
  attach(peer, *link);
  const Proof proof = prove(options_.key, "", Role::hello, our_side(*peer), {});
  transmit(peer, make_envelope([&](wire::Envelope::Builder out) {
             auto hello = out.initHello();
             fill_hello(hello, *peer);
             hello.setProof(kj::arrayPtr(proof.data(), proof.size()));
           }),
           true);
  return peer;
}

Side Core::our_side(const Peer& peer) const {
  return {node_to_bytes(system_.node()), peer.rx_token, peer.nonce, messenger_->address()};
}

void Core::fill_hello(wire::Hello::Builder out, const Peer& peer) {
  const Side side = our_side(peer);
  out.setVersion(wire::PROTOCOL_VERSION);
  out.setRunId(options_.run_id);
  out.setNode(kj::arrayPtr(side.node.data(), side.node.size()));
  out.setToken(side.token);
  out.setAddress(kj::arrayPtr(side.address.data(), side.address.size()));
  out.setNonce(kj::arrayPtr(side.nonce.data(), side.nonce.size()));
}

void Core::handle_hello(const stream::LinkPtr& link, wire::Hello::Reader in) {
  auto side = side_of(in);
  const caf::node_id node = side ? node_from_bytes(side->node) : caf::node_id{};
  if (!side || node == system_.node())
    return drop_caller(link, Bad::malformed, "a hello with a bad node id, address or nonce");
  if (!equal(prove(options_.key, "", Role::hello, *side, {}), to_span(in.getProof())))
    return drop_caller(link, Bad::malformed, "a hello without the run's key");
  if (in.getVersion() != wire::PROTOCOL_VERSION) {
    return refuse(link, side->token,
                  "protocol version " + std::to_string(wire::PROTOCOL_VERSION) + " here, version " +
                      std::to_string(in.getVersion()) + " there");
  }
  const std::string run_id = in.getRunId();
  if (run_id != options_.run_id) {
    return refuse(
        link, side->token,
        "run \"" + options_.run_id + "\" here, run \"" + run_id.substr(0, 100) + "\" there");
  }
  if (stopping_ || peers_.size() >= options_.peers_max)
    return drop_caller(link, Bad::dropped, "a hello while stopping or beyond peers_max");
  const PeerPtr known = current_peer(node);
  const auto connection = connection_of(known);
  // The link stays until the other process replaces its own call by this process's call, or until
  // the deadline.
  if (!accepts_hello(pointer(connection), lower_than(node))) return;
  PeerPtr caller = make_peer(node);
  caller->awaiting_proof = true;
  caller->established_at_hello = established_number(pointer(connection));
  attach(caller, link);
  caller->tx_token = side->token;
  caller->hello = std::move(*side);
  const Proof proof =
      prove(options_.key, options_.run_id, Role::welcome, our_side(*caller), caller->hello);
  transmit(caller, make_envelope([&](wire::Envelope::Builder out) {
             auto welcome = out.initWelcome();
             fill_hello(welcome, *caller);
             if (caller->established_at_hello != 0) welcome.setOther(known->tx_token);
             welcome.setProof(kj::arrayPtr(proof.data(), proof.size()));
           }));
}

void Core::handle_welcome(const PeerPtr& peer, wire::Hello::Reader in) {
  if (peer->established) return;
  const auto side = side_of(in);
  if (!side || in.getVersion() != wire::PROTOCOL_VERSION ||
      std::string(in.getRunId()) != options_.run_id || node_from_bytes(side->node) != peer->node) {
    count(Bad::malformed, peer.get(), "a welcome of another node or run");
    return disconnect(peer, {"the welcome is of another node or run"}, false);
  }
  const Side ours = our_side(*peer);
  if (!equal(prove(options_.key, options_.run_id, Role::welcome, *side, ours),
             to_span(in.getProof()))) {
    count(Bad::malformed, peer.get(), "a welcome without the run's key");
    return disconnect(peer, {"it does not have this run's key"}, false);
  }
  const auto other = in.getOther() == 0 ? by_token_.end() : by_token_.find(in.getOther());
  const bool alive =
      other != by_token_.end() && other->second != peer && other->second->node == peer->node;
  if (keeps_named_connection(in.getOther() != 0, alive))
    return replace_peer(peer, other->second, "the peer's own connection stays");
  peer->tx_token = side->token;
  const Proof proof = prove(options_.key, options_.run_id, Role::proof, ours, *side);
  transmit(peer, make_envelope([&](wire::Envelope::Builder out) {
             out.setProof(kj::arrayPtr(proof.data(), proof.size()));
           }));
  establish(peer);
}

void Core::handle_proof(const PeerPtr& caller, capnp::Data::Reader proof) {
  if (!equal(prove(options_.key, options_.run_id, Role::proof, caller->hello, our_side(*caller)),
             to_span(proof))) {
    count(Bad::malformed, caller.get(), "a proof without the run's key");
    return disconnect(caller, {"it does not have this run's key"}, false);
  }
  const PeerPtr before = current_peer(caller->node);
  const auto connection = connection_of(before);
  const TieBreak decision = break_tie(pointer(connection), caller->number,
                                      caller->established_at_hello, lower_than(caller->node));
  if (decision == TieBreak::keep)
    return disconnect(caller, {"another connection with it stays"}, false);
  caller->awaiting_proof = false;
  // Send no goodbye and report no lost peer: the other process replaces the connection, too.
  if (decision == TieBreak::replace_silently) before->established = false;
  if (before) replace_peer(before, caller, "it reconnected");
  make_current(caller);
  establish(caller);
}

/// Disconnects `from`. Its lookups then wait for `to`.
void Core::replace_peer(const PeerPtr& from, const PeerPtr& to, const std::string& reason) {
  for (auto& [id, lookup] : lookups_)
    if (lookup.peer == from) lookup.peer = to;  // establish() sends it again
  disconnect(from, {reason}, false);
}

/// Makes `peer` the connection that current_peer() returns for its node.
void Core::make_current(const PeerPtr& peer) {
  watch_process(peer);
  peers_[peer->node] = peer;
  start_ticking();
}

void Core::establish(const PeerPtr& peer) {
  peer->established = true;
  messenger_->trust(peer->link, options_.message_bytes_max);
  peer->last_received = Clock::now();
  log::debug("transport: connected to {}", peer->name);
  for (auto& [id, lookup] : lookups_) {
    if (lookup.peer == peer) send_lookup(id, lookup);
  }
}

/// Closes the connection at once, so that its caller need not wait for its deadline.
void Core::drop_caller(const stream::LinkPtr& link, Bad kind, const std::string& what) {
  count(kind, nullptr, what);
  messenger_->close(link);
}

void Core::refuse(const stream::LinkPtr& link, uint64_t token, const std::string& reason) {
  if (refusals_logged_++ < 10) log::warn("transport: a connection refused: {}", reason);
  auto stranger = std::make_shared<Peer>(caf::node_id{}, 0);
  stranger->link = link;
  stranger->tx_token = token;
  transmit(stranger, make_envelope([&](wire::Envelope::Builder out) { out.setRefused(reason); }));
  stranger->lost = true;
  messenger_->finish(link);
}

}  // namespace simplescale::remote
