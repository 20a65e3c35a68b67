// A second process for the tests: starts the test program again to run the test case "transport
// helper" (helper.cpp) alone. The helper publishes the actor "server", prints its address, and runs
// until its parent closes the pipe or kills it.
#pragma once

#include <caf/all.hpp>
#include <memory>
#include <optional>
#include <string>

#include "transport/caf/transport.hpp"
#include "transport/stream/address.hpp"

namespace simplescale::testing {

/// Says how the processes of a test, children included, connect in its scope: over "tcp", as if each
/// were on a host of its own, or over "unix" sockets, as without a Wire.
class Wire {
 public:
  explicit Wire(const std::string& kind);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

 private:
  std::optional<std::string> before_;
};

/// A new host's id under Wire("tcp"); else nothing: this host.
std::optional<stream::Id> other_host();

class Helper {
 public:
  explicit Helper(const std::string& run_id = "test");
  ~Helper();
  Helper(const Helper&) = delete;
  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  /// Sends SIGKILL and, unless `zombie`, reaps the process.
  void kill(bool zombie = false);
  void signal(int number);
  /// Closes the pipe, so that the helper stops its transport and exits. Returns its exit status.
  int end();

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  std::string address_;
};

/// An actor system with a transport, in the test process.
struct Process {
  explicit Process(TransportOptions options = {});
  ~Process();
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
  std::unique_ptr<Transport> transport;
  /// The helper's server. Fails the test if the lookup fails.
  caf::actor server(const Helper& helper);
};

/// The helper's server; helper.cpp lists its commands.
caf::behavior server(caf::event_based_actor* self);

}  // namespace simplescale::testing
