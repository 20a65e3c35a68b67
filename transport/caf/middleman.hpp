// The CAF module that gives an actor system its node id. CAF 0.17 lets only a class of this name
// set the id: it declares caf::net::middleman a friend of actor_system but does not define it. It
// has no threads and no state.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

namespace caf::net {

class middleman : public actor_system::module {
 public:
  explicit middleman(actor_system& system) : system_(system) {}
  /// Sets the id: the pid, 8 bytes that identify the pid namespace, 12 random bytes. The id is
  /// unique even if a later process has the same pid.
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
