#include "transport/caf/proxy.hpp"

#include <caf/all.hpp>

#include "transport/caf/core.hpp"

namespace simplescale::remote {

Proxy::Proxy(caf::actor_config& config, std::shared_ptr<Core> core, PeerPtr peer)
    : caf::actor_proxy(config), core_(std::move(core)), peer_(std::move(peer)) {}

void Proxy::enqueue(caf::mailbox_element_ptr element, caf::execution_unit*) {
  core_->send(peer_, id(), std::move(element));
}

void Proxy::kill_proxy(caf::execution_unit* context, caf::error reason) {
  cleanup(std::move(reason), context);
}

bool Proxy::add_backlink(caf::abstract_actor* local) {
  if (!caf::actor_proxy::add_backlink(local)) return false;
  core_->link(peer_, caf::strong_actor_ptr(local->ctrl()), id(), true);
  return true;
}

bool Proxy::remove_backlink(caf::abstract_actor* local) {
  if (!caf::actor_proxy::remove_backlink(local)) return false;
  core_->link(peer_, caf::strong_actor_ptr(local->ctrl()), id(), false);
  return true;
}

DownNotifier::DownNotifier(std::weak_ptr<Core> core, PeerPtr peer, caf::actor_id actor)
    : core_(std::move(core)), peer_(std::move(peer)), actor_(actor) {}

void DownNotifier::actor_exited(const caf::error& reason, caf::execution_unit*) {
  if (auto core = core_.lock()) core->local_actor_ended(peer_, actor_, reason);
}

bool DownNotifier::matches(const token& what) {
  return what.subtype == token::anonymous && what.ptr == peer_.get();
}

}  // namespace simplescale::remote
