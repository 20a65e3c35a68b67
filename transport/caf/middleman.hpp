// The CAF module that gives an actor system its node id: only a class of this name may set it (CAF
// 0.17 declares caf::net::middleman a friend of actor_system and leaves it to others). It has no
// threads and no state.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

namespace caf::net {

class middleman : public actor_system::module {
 public:
  explicit middleman(actor_system& system) : system_(system) {}
  /// Random 20 bytes and the pid: another process never has the same, not even on the same host
  /// with the same pid.
  void init(actor_system_config&) override;
  void start() override {}
  void stop() override {}
  id_t id() const override { return module::network_manager; }
  void* subtype_ptr() override { return this; }
  static module* make(actor_system& system, detail::type_list<>) { return new middleman(system); }

 private:
  actor_system& system_;
};

}  // namespace caf::net
