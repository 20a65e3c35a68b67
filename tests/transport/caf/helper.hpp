// A second process for the tests: this program again, in the role of the test case "transport
// helper" (helper.cpp). It publishes the actor "server", prints its address, and lives until its
// parent closes the pipe or kills it.
#pragma once

#include <caf/all.hpp>
#include <memory>
#include <string>

#include "transport/caf/transport.hpp"

namespace simplescale::testing {

/// Sets UCX_TLS for this process and those it starts: "tcp", or "posix,sysv,self" for shared
/// memory.
void set_wire(const std::string& tls);

class Helper {
 public:
  explicit Helper(const std::string& run_id = "test");
  ~Helper();
  Helper(const Helper&) = delete;
  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  /// SIGKILL; reaped as well unless `zombie`.
  void kill(bool zombie = false);
  void signal(int number);
  /// Closes the pipe: the helper stops its transport and ends by itself; returns its exit status.
  int end();

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  std::string address_;
};

/// An actor system with a transport, for this side.
struct Process {
  explicit Process(TransportOptions options = {});
  ~Process();
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
  std::unique_ptr<Transport> transport;
  /// The helper's server; fails the test if it cannot be found.
  caf::actor server(const Helper& helper);
};

/// What the helper runs: see helper.cpp for what it answers.
caf::behavior server(caf::event_based_actor* self);

}  // namespace simplescale::testing
