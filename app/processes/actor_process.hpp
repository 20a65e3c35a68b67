// The actor system of a process, and its transport to the actors of other processes. Agents,
// supervisors, trainers, consoles and `doctor` all create both with this.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <memory>
#include <string>

#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/caf/transport.hpp"

namespace simplescale {

inline constexpr int kLookupMs = 1'000;  // limit for a supervisor or an agent to answer

/// True if the run has tasks on other hosts, or may have some later. All nodes of the local
/// launcher are on this host, but others may join them.
bool has_other_hosts(const Config& config);

class ActorProcess {
 public:
  /// instance: id of this start of the run. Refuses peers of another instance, and peers without
  /// the key in the run's folder. Listens on TCP only if has_other_hosts(). threads: CAF workers.
  /// Errors: those of Transport::start and read_run_key.
  static Result<std::unique_ptr<ActorProcess>> start(const Config& config, const RunFolder& run,
                                                     const std::string& instance, size_t threads);

  caf::actor_system& system() { return system_; }
  Transport& transport() { return *transport_; }

 private:
  explicit ActorProcess(size_t threads);
  struct SystemConfig : caf::actor_system_config {
    explicit SystemConfig(size_t threads);
  };
  // Destroyed in reverse order: first the transport, then the system (which waits for its actors),
  // then its configuration.
  SystemConfig config_;
  caf::actor_system system_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace simplescale
