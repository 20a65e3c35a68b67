// Peers after the handshake: heartbeats, loss, disconnecting and lookups. Runs on the transport
// thread, except for the section "any thread". handshake.cpp connects peers.
#include "transport/caf/core.hpp"

#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>

#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/proxy.hpp"

namespace simplescale::remote {
namespace {

constexpr uint32_t kProofMs = 5'000;   // limit for a caller's proof, unless silence_ms is longer
constexpr int kShutdownFlushMs = 200;  // limit for sending all goodbyes when this process stops

}  // namespace

std::string short_name(const caf::node_id& node) {
  std::string name = to_string(node);  // HASH#PID
  size_t hash = name.find('#');
  if (hash == std::string::npos) return name;
  return "process " + name.substr(hash + 1) + " (" + name.substr(0, 8) + ")";
}

Core::Core(caf::actor_system& system, TransportOptions options)
    : system_(system),
      options_(std::move(options)),
      loop_(system, std::chrono::microseconds(options_.spin_us)) {}

// ---- any thread -------------------------------------------------------------------------------

void Core::publish(const std::string& name, caf::actor actor) {
  loop_.post([this, name, actor]() { published_[name] = actor; });
}

void Core::lookup(const std::string& address, const std::string& name, int timeout_ms,
                  Transport::OnLookup on_done) {
  auto parsed = parse_address(address);
  if (!parsed.ok()) return on_done(parsed.status());
  bool posted = loop_.post([this, to = parsed.take(), name, timeout_ms, on_done]() mutable {
    begin_lookup(std::move(to), name, timeout_ms, std::move(on_done));
  });
  if (!posted) on_done(Status(Code::aborted, "the transport has stopped"));
}

void Core::on_peer_lost(Transport::OnPeerLost callback) {
  loop_.post([this, callback]() { on_peer_lost_.push_back(callback); });
}

void Core::peer_is_dead(const caf::node_id& node, const std::string& reason) {
  loop_.post([this, node, reason]() {
    auto found = peers_.find(node);
    if (found != peers_.end()) disconnect(PeerPtr(found->second), in_words(reason), false);
  });
}

TransportCounters Core::counters() const {
  auto bad = [&](Bad kind) { return counters_.bad[static_cast<size_t>(kind)].load(); };
  return {counters_.sent,      counters_.received,    bad(Bad::malformed), bad(Bad::unknown),
          bad(Bad::oversized), bad(Bad::unsupported), bad(Bad::dropped)};
}

void Core::inject(TransportFault fault) {
  loop_.post([this, fault = std::move(fault)]() {
    fault_ = fault;
    fault_ends_ = Clock::now() + std::chrono::milliseconds(fault_.for_ms);
    log::warn("injected: {:.0f} % of the messages dropped, the others {} ms late, for {} ms",
              100 * fault_.lose, fault_.delay_ms, fault_.for_ms);
  });
}

void Core::stop() {
  loop_.post([this]() { shut_down(); });
}

// ---- the thread -------------------------------------------------------------------------------

void Core::run(const std::function<void(Result<std::string>)>& ready) {
  auto start = [&]() -> Result<std::string> {
    SS_RETURN_IF_ERROR(init_crypto());
    const stream::Handlers handlers{
        [this](const auto& link, stream::Incoming& message) { on_message(link, message); },
        [this](const auto& link, auto end, const auto& why) { on_end(link, end, why); }};
    stream::MessengerOptions options;
    options.key = options_.key;
    options.network = options_.network;
    if (options_.host) options.host = *options_.host;
    options.proof_ms = static_cast<int>(std::max(kProofMs, options_.silence_ms));
    SS_ASSIGN(messenger_, stream::Messenger::create(std::move(options), handlers));
    return to_text({system_.node(), messenger_->address()});
  };
  Result<std::string> started = start();
  bool ok = started.ok();
  ready(std::move(started));
  if (ok) {
    loop_.run(*messenger_);
    messenger_->flush(kShutdownFlushMs);  // sends the goodbyes; the limit covers dead peers
  }
  messenger_.reset();
}

void Core::shut_down() {
  if (stopping_) return;
  stopping_ = true;
  // by_token_ also has the callers without a proof, which are not in peers_.
  while (!by_token_.empty())
    disconnect(PeerPtr(by_token_.begin()->second), {"the process is stopping"}, true);
  while (!lookups_.empty()) {
    end_lookup(lookups_.begin()->first, Status(Code::aborted, "the transport has stopped"));
  }
  published_.clear();
  on_peer_lost_.clear();
  loop_.quit();
}

// ---- disconnecting ----------------------------------------------------------------------------

void Core::disconnect(const PeerPtr& peer, const Reason& reason, bool expected) {
  if (peer->lost) return;
  PeerPtr keep = peer;  // `peer` may refer to an element of a map that this function erases
  bool was_established = peer->established;
  bool say_goodbye = was_established && !peer->broken;
  if (say_goodbye) {
    transmit(peer,
             make_envelope([&](wire::Envelope::Builder out) { out.setGoodbye(reason.text); }));
  }
  if (was_established) {
    if (expected) {
      log::debug("transport: disconnected from {}: {}", peer->name, reason.text);
    } else {
      log::warn("transport: lost {}: {}", peer->name, reason.text);
    }
  }
  peer->lost = true;
  peer->established = false;
  by_token_.erase(peer->rx_token);
  if (auto at = peers_.find(peer->node); at != peers_.end() && at->second == peer) peers_.erase(at);
  peer->awaiting_proof = false;
  if (peer->pidfd >= 0) {
    loop_.forget(peer->pidfd);
    close(std::exchange(peer->pidfd, -1));
  }
  if (const stream::LinkPtr link = std::exchange(peer->link, nullptr)) {
    by_link_.erase(link.get());
    say_goodbye ? messenger_->finish(link) : messenger_->close(link);
  }

  std::vector<uint64_t> waiting;
  for (auto& [id, lookup] : lookups_) {
    if (lookup.peer == peer) waiting.push_back(id);
  }
  for (uint64_t id : waiting) end_lookup(id, Status(Code::unavailable, reason.text));

  auto requests = std::move(peer->requests);
  auto exported = std::move(peer->exported);
  auto proxies = std::move(peer->proxies);
  peer->requests.clear(), peer->exported.clear(), peer->proxies.clear();
  for (auto& [key, request] : requests) {
    auto requester = exported.find(key.requester);
    if (requester == exported.end()) continue;
    requester->second->enqueue(nullptr, request.id.response_id(),
                               caf::make_message(make_error(caf::sec::request_receiver_down)),
                               &loop_);
  }
  for (auto& [id, actor] : exported) actor->get()->detach(DownNotifier::token_of(*peer));
  auto lost = make_error(caf::exit_reason::remote_link_unreachable);
  lost.context() =
      caf::make_message(reason.text, static_cast<uint8_t>(reason.kind), reason.ms, reason.detail);
  for (auto& [id, proxy] : proxies) static_cast<Proxy*>(proxy->get())->kill_proxy(&loop_, lost);
  if (was_established) {
    for (auto& callback : on_peer_lost_) callback(peer->node, reason.text);
  }
}

// ---- heartbeats -------------------------------------------------------------------------------

void Core::start_ticking() {
  if (ticking_ || options_.heartbeat_ms == 0) return;
  ticking_ = true;
  last_tick_ = Clock::now();
  loop_.call_at(last_tick_ + std::chrono::milliseconds(options_.heartbeat_ms),
                [this]() { tick(); });
}

void Core::tick() {
  ticking_ = false;
  if (peers_.empty()) return;
  auto now = Clock::now();
  // If this process itself was stopped or got no CPU, that time does not count as a peer's silence.
  const auto late = now - last_tick_ - std::chrono::milliseconds(options_.heartbeat_ms);
  std::vector<std::pair<PeerPtr, Reason>> lost;
  for (auto& [node, peer] : peers_) {
    if (late > late.zero()) peer->last_received = std::min(now, peer->last_received + late);
    if (peer->received_since_tick) peer->last_received = now;
    if (auto why = silence_reason(*peer, now)) {
      lost.emplace_back(peer, std::move(*why));
    } else if (peer->established && !peer->sent_since_tick) {
      transmit(peer, make_envelope([](wire::Envelope::Builder out) { out.setHeartbeat(); }));
    }
    peer->received_since_tick = peer->sent_since_tick = false;
  }
  for (auto& [peer, why] : lost) disconnect(peer, why, false);
  start_ticking();
}

/// Why the silent peer counts as lost; nothing: it does not. If the kernel reports a peer on this host as running,
/// it may only lack CPU time, so it gets three times silence_ms.
std::optional<Reason> Core::silence_reason(const Peer& peer, Clock::time_point now) const {
  if (peer.received_since_tick || options_.silence_ms == 0) return {};
  const auto limit = std::chrono::milliseconds(options_.silence_ms);
  const auto silence = now - peer.last_received;
  if (silence <= limit / 4) return {};
  ProcessState state = ProcessState::runs;
  if (peer.pid != 0) state = process_state(peer.pid);
  if (state == ProcessState::gone) return process_ended();
  if (silence <= limit || (peer.pid != 0 && state == ProcessState::runs && silence <= 3 * limit))
    return {};
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
  if (state != ProcessState::stopped && !peer.established)
    return in_words("no answer for " + std::to_string(ms) + " ms");
  return reason_of(
      {.kind = state == ProcessState::stopped ? ReasonKind::stopped : ReasonKind::silent,
       .ms = ms});
}

// ---- lookups ----------------------------------------------------------------------------------

void Core::begin_lookup(Address address, std::string name, int timeout_ms,
                        Transport::OnLookup on_done) {
  if (stopping_) return on_done(Status(Code::aborted, "the transport has stopped"));
  if (address.node == system_.node()) {
    auto found = published_.find(name);
    if (found != published_.end()) return on_done(found->second);
    return on_done(Status(Code::not_found, "no actor is published as \"" + name + "\""));
  }
  auto peer = connect(address);
  if (!peer.ok()) return on_done(peer.status());
  uint64_t id = ++last_lookup_;
  auto& lookup = lookups_[id];
  lookup = {*peer, std::move(name), std::move(on_done)};
  loop_.call_at(
      Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0)), [this, id, timeout_ms]() {
        end_lookup(
            id, Status(Code::deadline, "no answer within " + std::to_string(timeout_ms) + " ms"));
      });
  if ((*peer)->established) send_lookup(id, lookup);
}

void Core::send_lookup(uint64_t id, const Lookup& lookup) {
  transmit(lookup.peer, make_envelope([&](wire::Envelope::Builder out) {
             auto body = out.initLookup();
             body.setId(id);
             body.setName(lookup.name);
           }));
}

void Core::end_lookup(uint64_t id, Result<caf::actor> result) {
  auto found = lookups_.find(id);
  if (found == lookups_.end()) return;
  Lookup lookup = std::move(found->second);
  lookups_.erase(found);
  lookup.on_done(std::move(result));
  // Drop a peer that has not answered and for which no lookup waits any more.
  bool waited_for = std::any_of(lookups_.begin(), lookups_.end(),
                                [&](auto& other) { return other.second.peer == lookup.peer; });
  if (!lookup.peer->established && lookup.peer->ours && !waited_for)
    disconnect(lookup.peer, {"no answer"}, false);
}

}  // namespace simplescale::remote
