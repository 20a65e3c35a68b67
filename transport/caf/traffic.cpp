// Messages between actors: encodes what a proxy receives, and delivers envelopes to local actors.
// Encoding runs on the sender's thread, everything else on the transport thread.
#include <cxxabi.h>

#include <caf/all.hpp>
#include <caf/default_attachable.hpp>
#include <cstdlib>

#include "runtime/base/log.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/proxy.hpp"

namespace simplescale::remote {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kSharedEncodingBytes = 16 << 10;  // bytes

void answer_locally(const caf::strong_actor_ptr& requester, caf::message_id request,
                    caf::error error, caf::execution_unit* context) {
  if (!requester || !request.is_request()) return;
  requester->enqueue(nullptr, request.response_id(), caf::make_message(std::move(error)), context);
}

/// An envelope that answers a request with an error.
Words error_envelope(caf::actor_id requester, caf::message_id response, const caf::error& error) {
  return make_envelope([&](wire::Envelope::Builder envelope) {
    auto message = envelope.initMessage();
    message.setReceiver(requester);
    message.setId(response.integer_value());
    write_error(error, message.initBody().initError());
  });
}

std::string type_names(const caf::type_erased_tuple& content) {
  std::string names;
  for (size_t i = 0; i < content.size(); ++i) {
    auto type = content.type(i);
    std::string name;
    if (type.first != 0) {
      name = caf::numbered_type_names[type.first - 1];
    } else if (type.second) {
      int status = 0;
      char* plain = abi::__cxa_demangle(type.second->name(), nullptr, nullptr, &status);
      name = plain ? plain : type.second->name();
      std::free(plain);
    }
    names += (i ? ", " : "") + name;
  }
  return "(" + names + ")";
}

RequestKey key_of(caf::actor_id requester, caf::message_id id) {
  return {requester, id.integer_value() & caf::message_id::request_id_mask};
}

caf::default_attachable::observe_token link_token(const caf::strong_actor_ptr& observer) {
  return {caf::actor_cast<caf::actor_addr>(observer), caf::default_attachable::link};
}

}  // namespace

/// An encoded message for the transport thread, and the data that send_now() registers.
struct Core::Outgoing {
  Words words;
  caf::strong_actor_ptr sender;  // a local actor, or null
  caf::message_id id;
  caf::actor_id receiver = 0;
};

// ---- out --------------------------------------------------------------------------------------

void Core::send(const PeerPtr& peer, caf::actor_id receiver, caf::mailbox_element_ptr element) {
  Outgoing out;
  if (!encode(peer, receiver, *element, out)) return;
  // A handler on the transport thread sends at once, but after the posted tasks (order of posting).
  if (loop_.on_this_thread() && loop_.flush()) return send_now(peer, std::move(out));
  caf::strong_actor_ptr sender = out.sender;
  caf::message_id id = out.id;
  bool posted = loop_.post([self = shared_from_this(), peer, out = std::move(out)]() mutable {
    self->send_now(peer, std::move(out));
  });
  if (!posted) answer_locally(sender, id, make_error(caf::sec::request_receiver_down), nullptr);
}

/// Encodes a message into `out`. False if there is nothing to send; a request that cannot be sent
/// has then been answered with an error.
bool Core::encode(const PeerPtr& peer, caf::actor_id receiver, caf::mailbox_element& element,
                  Outgoing& out) {
  auto& content = element.content();
  out.sender = element.sender;
  out.id = element.mid;
  out.receiver = receiver;
  auto refuse = [&](Bad kind, caf::sec code, const std::string& what) {
    loop_.post(
        [self = shared_from_this(), peer, kind, what]() { self->count(kind, peer.get(), what); });
    caf::error error = caf::make_error(code, what);
    if (out.id.is_response()) {  // send the error to the remote requester
      out.words = error_envelope(receiver, out.id, error);
      return true;
    }
    answer_locally(out.sender, out.id, error, nullptr);
    return false;
  };

  if (content.size() == 1 && content.match_element<caf::exit_msg>(0)) {
    auto& exit = content.get_as<caf::exit_msg>(0);
    auto source = caf::actor_cast<caf::strong_actor_ptr>(exit.source);
    // This is the exit message of a linked actor: its Down tells the peer.
    if (element.sender && element.sender == source &&
        source->get()->getf(caf::abstract_actor::is_terminated_flag)) {
      return false;
    }
    out.sender = source && source->node() == system_.node() ? source : nullptr;
    out.words = make_envelope([&](wire::Envelope::Builder envelope) {
      auto body = envelope.initExit();
      body.setSource(out.sender ? out.sender->id() : 0);
      body.setReceiver(receiver);
      write_error(exit.reason, body.initReason());
    });
    return true;
  }
  if (out.sender && out.sender->node() != system_.node()) {
    if (out.id.is_request()) {
      return refuse(Bad::unsupported, caf::sec::cannot_forward_to_invalid_actor,
                    "a request delegated from one remote actor to another");
    }
    out.sender = nullptr;
  }
  if (out.id.is_stream_message() || !element.stages.empty()) {
    return refuse(Bad::unsupported, caf::sec::unknown_type, "a stream or composed message");
  }
  try {
    bool allowed = false;
    out.words = encode_message(element, out.sender ? out.sender->id() : 0, receiver, allowed);
    if (!allowed) {
      return refuse(Bad::unsupported, caf::sec::unknown_type,
                    "not a message of the protocol: " + type_names(content));
    }
  } catch (const kj::Exception& e) {
    return refuse(Bad::oversized, caf::sec::invalid_argument, e.getDescription().cStr());
  }
  size_t bytes = out.words.asBytes().size();
  if (bytes > options_.message_bytes_max) {
    return refuse(Bad::oversized, caf::sec::invalid_argument,
                  "a message of " + std::to_string(bytes) + " bytes, more than " +
                      std::to_string(options_.message_bytes_max));
  }
  return true;
}

/// Encodes a large message that several receivers share only once. A JoinGeneration lists all
/// members of the job and is sent to every node.
Words Core::encode_message(const caf::mailbox_element& element, caf::actor_id sender,
                           caf::actor_id receiver, bool& allowed) {
  const auto& content = element.content();
  const uint64_t id = element.mid.integer_value();
  const size_t bytes = body_bytes(content);
  const bool several = content.shared() && bytes >= kSharedEncodingBytes;
  if (several) {
    const std::lock_guard lock(encoded_mutex_);
    const Encoded& e = encoded_;
    if (e.content.cvals().get() == &content && e.sender == sender && e.id == id) {
      allowed = true;
      return readdressed(e.words, receiver);
    }
  }
  auto fill = [&](wire::Envelope::Builder envelope) {
    auto message = envelope.initMessage();
    message.setSender(sender);
    message.setReceiver(receiver);
    message.setId(id);
    allowed = write_body(content, message.initBody());
  };
  Words words = make_envelope(fill, bytes);
  if (several && allowed) {
    const std::lock_guard lock(encoded_mutex_);
    encoded_ = {element.copy_content_to_message(), sender, id, readdressed(words, receiver)};
  }
  return words;
}

void Core::send_now(const PeerPtr& peer, Outgoing out) {
  if (peer->lost || !peer->proxies.count(out.receiver)) {
    if (!out.id.is_request()) return count(Bad::dropped, peer.get(), "sent to an actor that ended");
    return answer_locally(out.sender, out.id, make_error(caf::sec::request_receiver_down), &loop_);
  }
  if (out.sender) export_actor(peer, out.sender);
  if (out.sender && out.id.is_request()) {
    auto key = key_of(out.sender->id(), out.id);
    peer->requests[key] = {out.receiver, out.id};
    peer->request_order.push_back(key);
    // With more than actors_max requests, forget the oldest, whose deadline has most likely passed.
    // That request only loses ACTOR-3.
    if (peer->request_order.size() > options_.actors_max) {
      peer->requests.erase(peer->request_order.front());
      peer->request_order.pop_front();
    }
  }
  transmit(peer, kj::mv(out.words));
}

void Core::export_actor(const PeerPtr& peer, const caf::strong_actor_ptr& actor) {
  if (!peer->exported.emplace(actor->id(), actor).second) return;
  actor->get()->attach(std::make_unique<DownNotifier>(weak_from_this(), peer, actor->id()));
}

void Core::local_actor_ended(const PeerPtr& peer, caf::actor_id actor, const caf::error& reason) {
  loop_.post([self = shared_from_this(), peer, actor, reason]() {
    if (peer->lost || peer->exported.erase(actor) == 0) return;
    self->transmit(peer, make_envelope([&](wire::Envelope::Builder envelope) {
                     auto down = envelope.initDown();
                     down.setActor(actor);
                     write_error(reason, down.initReason());
                   }));
  });
}

void Core::link(const PeerPtr& peer, caf::strong_actor_ptr local, caf::actor_id remote, bool on) {
  loop_.post([self = shared_from_this(), peer, local, remote, on]() {
    if (peer->lost || !peer->proxies.count(remote)) return;
    self->export_actor(peer, local);
    self->transmit(peer, make_envelope([&](wire::Envelope::Builder envelope) {
                     auto link = on ? envelope.initLink() : envelope.initUnlink();
                     link.setSource(local->id());
                     link.setReceiver(remote);
                   }));
  });
}

// ---- in ---------------------------------------------------------------------------------------

void Core::dispatch(const PeerPtr& peer, wire::Envelope::Reader envelope) {
  using Kind = wire::Envelope;
  if (!peer->established) {  // CONNECTION-3
    const auto kind = envelope.which();
    const bool expected =
        peer->awaiting_proof ? kind == Kind::PROOF : kind == Kind::WELCOME || kind == Kind::REFUSED;
    if (!expected) return count(Bad::malformed, peer.get(), "a message before the handshake's end");
  }
  switch (envelope.which()) {
    case Kind::HELLO:
      return count(Bad::malformed, peer.get(), "a hello on an open connection");
    case Kind::WELCOME:
      return handle_welcome(peer, envelope.getWelcome());
    case Kind::REFUSED:
      if (peer->established) return;
      return disconnect(peer, {"refused: " + std::string(envelope.getRefused()).substr(0, 500)},
                        false);
    case Kind::GOODBYE:
      peer->broken = true;
      return disconnect(
          peer, {"the peer disconnected: " + std::string(envelope.getGoodbye()).substr(0, 500)},
          true);
    case Kind::PROOF:
      if (peer->awaiting_proof) return handle_proof(peer, envelope.getProof());
      return count(Bad::malformed, peer.get(), "a proof on an open connection");
    case Kind::HEARTBEAT:
      return;
    case Kind::MESSAGE:
      return handle_message(peer, envelope.getMessage());
    case Kind::EXIT:
      return handle_exit(peer, envelope.getExit());
    case Kind::DOWN:
      return handle_down(peer, envelope.getDown());
    case Kind::LINK:
      return handle_link(peer, envelope.getLink(), true);
    case Kind::UNLINK:
      return handle_link(peer, envelope.getUnlink(), false);
    case Kind::LOOKUP:
      return handle_lookup(peer, envelope.getLookup());
    case Kind::FOUND:
      return handle_found(peer, envelope.getFound());
  }
  count(Bad::unknown, peer.get(),
        "an envelope of kind " + std::to_string(static_cast<unsigned>(envelope.which())));
}

/// The proxy of a remote actor. Null for actor 0, or if the peer names more actors than allowed.
caf::strong_actor_ptr Core::proxy(const PeerPtr& peer, caf::actor_id actor) {
  if (actor == 0) return nullptr;
  auto found = peer->proxies.find(actor);
  if (found != peer->proxies.end()) return found->second;
  if (peer->proxies.size() >= options_.actors_max) {
    count(Bad::dropped, peer.get(), "it names too many actors");
    return nullptr;
  }
  caf::actor_config config;
  auto proxy = caf::make_actor<Proxy, caf::strong_actor_ptr>(actor, peer->node, &system_, config,
                                                             shared_from_this(), peer);
  peer->proxies.emplace(actor, proxy);
  return proxy;
}

void Core::handle_message(const PeerPtr& peer, wire::Message::Reader in) {
  caf::message_id id(in.getId());
  if (id.is_stream_message() || id.is_answered()) {
    return count(Bad::malformed, peer.get(), "a message id that is not allowed on the wire");
  }
  // An answer ends its request, even if the type of its content is unknown.
  bool expected = !id.is_response() || peer->requests.erase(key_of(in.getReceiver(), id)) != 0;
  auto receiver = peer->exported.find(in.getReceiver());
  if (receiver == peer->exported.end() || !expected) {
    count(Bad::dropped, peer.get(), "a message for an actor that ended, or an answer too late");
    return answer_error(peer, in.getSender(), id, make_error(caf::sec::request_receiver_down));
  }
  caf::message content;
  if (read_body(in.getBody(), content) == BodyKind::unknown) {
    count(Bad::unknown, peer.get(),
          "a message of kind " + std::to_string(static_cast<unsigned>(in.getBody().which())));
    answer_error(peer, in.getSender(), id, make_error(caf::sec::unknown_type));
    if (!id.is_response()) return;
    content = caf::make_message(make_error(caf::sec::unknown_type));
  }
  receiver->second->enqueue(
      caf::make_mailbox_element(proxy(peer, in.getSender()), id, {}, std::move(content)), &loop_);
}

void Core::answer_error(const PeerPtr& peer, caf::actor_id requester, caf::message_id request,
                        const caf::error& error) {
  if (!request.is_request()) return;
  transmit(peer, error_envelope(requester, request.response_id(), error));
}

void Core::handle_exit(const PeerPtr& peer, wire::Exit::Reader in) {
  auto receiver = peer->exported.find(in.getReceiver());
  if (receiver == peer->exported.end()) {
    return count(Bad::dropped, peer.get(), "an exit for an actor that ended");
  }
  auto source = caf::actor_cast<caf::actor_addr>(proxy(peer, in.getSource()));
  receiver->second->enqueue(nullptr, caf::make_message_id(),
                            caf::make_message(caf::exit_msg{source, read_error(in.getReason())}),
                            &loop_);
}

void Core::handle_down(const PeerPtr& peer, wire::Down::Reader in) {
  caf::actor_id actor = in.getActor();
  auto found = peer->proxies.find(actor);
  if (found == peer->proxies.end()) return;
  caf::strong_actor_ptr proxy = std::move(found->second);
  peer->proxies.erase(found);
  for (auto i = peer->requests.begin(); i != peer->requests.end();) {
    if (i->second.receiver != actor) {
      ++i;
      continue;
    }
    auto requester = peer->exported.find(i->first.requester);
    if (requester != peer->exported.end()) {
      answer_locally(requester->second, i->second.id, make_error(caf::sec::request_receiver_down),
                     &loop_);
    }
    i = peer->requests.erase(i);
  }
  static_cast<Proxy*>(proxy->get())->kill_proxy(&loop_, read_error(in.getReason()));
}

void Core::handle_link(const PeerPtr& peer, wire::Link::Reader in, bool on) {
  auto remote = proxy(peer, in.getSource());
  auto local = peer->exported.find(in.getReceiver());
  if (!remote || local == peer->exported.end()) return;  // the Down of `local` tells the peer
  // Attach nothing to the local actor: when it ends, Down tells the proxy, and links on the peer's
  // side.
  auto proxy_address = caf::actor_cast<caf::actor_addr>(remote);
  auto local_address = caf::actor_cast<caf::actor_addr>(local->second);
  remote->get()->detach(link_token(local->second));
  if (on) {
    remote->get()->attach(caf::default_attachable::make_link(proxy_address, local_address));
  } else {
    local->second->get()->detach(link_token(remote));
  }
}

void Core::handle_lookup(const PeerPtr& peer, wire::Lookup::Reader in) {
  std::string name = in.getName();
  if (name.size() > kNameBytesMax) return count(Bad::malformed, peer.get(), "a name too long");
  loop_.flush();  // a posted task may be a publish(), or the end of this peer
  if (peer->lost) return;
  auto found = published_.find(name);
  caf::strong_actor_ptr actor;
  if (found != published_.end()) actor = caf::actor_cast<caf::strong_actor_ptr>(found->second);
  bool remote = actor && actor->node() != system_.node();
  transmit(peer, make_envelope([&](wire::Envelope::Builder envelope) {
             auto body = envelope.initFound();
             body.setId(in.getId());
             body.setActor(actor && !remote ? actor->id() : 0);
           }));
  if (actor && !remote) export_actor(peer, actor);
}

void Core::handle_found(const PeerPtr& peer, wire::Found::Reader in) {
  auto lookup = lookups_.find(in.getId());
  if (lookup == lookups_.end() || lookup->second.peer != peer)
    return;  // already ended at its deadline
  auto actor = proxy(peer, in.getActor());
  if (!actor) {
    return end_lookup(in.getId(), Status(Code::not_found, "no actor is published as \"" +
                                                              lookup->second.name + "\" there"));
  }
  end_lookup(in.getId(), caf::actor_cast<caf::actor>(actor));
}

}  // namespace simplescale::remote
