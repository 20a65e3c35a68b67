// Proxy: the local handle of an actor in another process. DownNotifier: the observer of a local
// actor that a peer knows. Both only pass events to Core. enqueue() runs on the sender's thread.
#pragma once

#include <caf/actor_proxy.hpp>

#include "transport/caf/peer.hpp"

namespace simplescale::remote {

class Core;

class Proxy : public caf::actor_proxy {
 public:
  Proxy(caf::actor_config& config, std::shared_ptr<Core> core, PeerPtr peer);

  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* context) override;
  /// Ends the proxy with the remote actor's reason; local monitors and links are notified.
  void kill_proxy(caf::execution_unit* context, caf::error reason) override;

  // CAF calls these two with the actors' mutexes held: they must only post.
  bool add_backlink(caf::abstract_actor* local) override;
  bool remove_backlink(caf::abstract_actor* local) override;

  const char* name() const override { return "remote_actor"; }

 private:
  std::shared_ptr<Core> core_;
  PeerPtr peer_;
};

/// Attached to a local actor that is exported to a peer. Tells the peer when the actor ends.
class DownNotifier : public caf::attachable {
 public:
  DownNotifier(std::weak_ptr<Core> core, PeerPtr peer, caf::actor_id actor);
  void actor_exited(const caf::error& reason, caf::execution_unit* context) override;
  bool matches(const token& what) override;
  static token token_of(const Peer& peer) { return {token::anonymous, &peer}; }

 private:
  std::weak_ptr<Core> core_;
  PeerPtr peer_;
  caf::actor_id actor_;
};

}  // namespace simplescale::remote
