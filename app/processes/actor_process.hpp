// What makes a process one of a run's: its actor system and the transport by which the actors of
// other processes reach it, set up the same way in agents and trainers.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <memory>
#include <string>

#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

class ActorProcess {
 public:
  /// instance: the start of the run that this process belongs to; others are refused, and so is who
  /// does not have the key that lies in the run's folder. threads: of the actors. The errors of
  /// Transport::start and read_run_key.
  static Result<std::unique_ptr<ActorProcess>> start(const Config& config, const RunFolder& run,
                                                     const std::string& instance, size_t threads);

  caf::actor_system& system() { return system_; }
  Transport& transport() { return *transport_; }

 private:
  explicit ActorProcess(size_t threads);
  struct SystemConfig : caf::actor_system_config {
    explicit SystemConfig(size_t threads);
  };
  // The transport goes before the system, which waits for its actors, and that before its
  // configuration.
  SystemConfig config_;
  caf::actor_system system_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace simplescale
