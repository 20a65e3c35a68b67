// Remote actors as ordinary CAF handles, over the sockets of a messenger (stream/messenger.hpp).
// Each process has one Transport, which owns the messenger and the transport thread. With a handle
// from lookup(), send, request with deadline, monitor, link, down and exit behave as between actors
// of one process:
//
//   ACTOR-1  Messages between two actors arrive in the order sent, each at most once. If a message
//            does not arrive, `down` follows.
//   ACTOR-2  When an actor ends, every process that knows it learns the reason. When its process is
//            lost, the reason is caf::exit_reason::remote_link_unreachable, and why_lost() tells more.
//   ACTOR-3  A request fails at once with caf::sec::request_receiver_down if its receiver has ended
//            or the receiver's process is lost.
//   ACTOR-4  Nothing that a peer sends crashes this process or makes it use unbounded memory.
//
// Wire rule: a remote message has exactly one message of transport/protocol/protocol.capnp (a
// response may also be void or an error). If a local actor sends anything else, its Transport refuses the
// message: it counts it, logs it once for each type, and fails its request with
// caf::sec::unknown_type. Handlers for remote messages run on the transport thread (unless the
// actor is detached), so they must not block.
#pragma once

#include <sys/types.h>

#include <array>
#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/node_id.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct TransportOptions {
  std::string run_id;    // processes of another run are refused
  std::string key;       // 32 secret bytes, the same for all processes of the run
  bool network = false;  // also accept processes of other hosts, over TCP
  std::optional<std::array<uint8_t, 16>> host;  // for tests: this process's host
  uint64_t message_bytes_max = 16 << 20;  // encoded size; sender and receiver refuse larger ones
  uint64_t queue_bytes_max = 64 << 20;    // for each peer and direction; a peer beyond this is lost
  uint32_t heartbeat_ms = 500;            // period; sent if nothing else was; 0: no heartbeats
  uint32_t silence_ms = 5000;             // a peer that is silent for this long is lost; 0: never
  uint32_t spin_us = 50;  // how long to poll for the next message before sleeping; 0: never
  uint32_t peers_max = 4096;
  uint32_t actors_max = 65536;  // per peer: remote actors known here, unanswered requests
};

/// Messages since the start.
struct TransportCounters {
  uint64_t sent = 0, received = 0;  // envelopes
  uint64_t malformed = 0;           // not an envelope, or not allowed in this state
  uint64_t unknown = 0;             // of a kind or type that only a newer program has
  uint64_t oversized = 0;           // larger than message_bytes_max, received or to be sent
  uint64_t unsupported = 0;         // local messages that the wire rule does not allow
  uint64_t dropped = 0;             // for an actor that has ended; connections of strangers
};

/// An injected fault. It affects all peers except the processes in `spared`, in both directions,
/// for for_ms. The share `lose` of the messages is dropped (1: all, as in a partition); the others
/// are sent delay_ms later. Heartbeats are messages, too. After a dropped message a connection
/// delivers nothing more, and it ends because of silence.
struct TransportFault {
  double lose = 0;  // 0..1
  uint32_t delay_ms = 0;
  uint32_t for_ms = 0;
  std::vector<pid_t> spared;  // in this process's pid namespace
};

/// Why the transport lost an actor's process, from the reason of a down or exit message: "silent
/// for 5003 ms", "its process has ended", "connection lost: …". Nothing: the actor itself has ended.
std::optional<Reason> why_lost(const caf::error& reason);

class Transport {
 public:
  using OnLookup = std::function<void(Result<caf::actor>)>;
  using OnPeerLost = std::function<void(const caf::node_id&, const std::string& reason)>;

  /// Call it on the configuration before creating the actor system for start(): registers the
  /// messages and gives the system a node id.
  static void configure(caf::actor_system_config& config);

  /// Opens the sockets and starts the thread. internal: configure() was not called;
  /// io: a socket cannot be created. Stop (or destroy) the transport before the actor system.
  static Result<std::unique_ptr<Transport>> start(caf::actor_system& system,
                                                  TransportOptions options);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// This process's address as one line of text, for other processes' lookup().
  const std::string& address() const;

  /// Publishes an actor: lookup() finds it under the name, instead of an earlier one. An ended
  /// actor stays published: a lookup then returns a handle that is down. Any thread.
  void publish(const std::string& name, caf::actor actor);

  /// Connects to a process, if not yet connected, and finds an actor that it published. bad_data:
  /// bad address; unavailable: the process cannot be reached or refuses (another run, key or
  /// protocol); not_found; deadline; aborted: this transport stops. Blocks: for main() and tests,
  /// never in an actor.
  Result<caf::actor> lookup(const std::string& address, const std::string& name, int timeout_ms);
  /// The same without blocking. `on_done` runs exactly once: on the transport thread, or on the
  /// caller's thread if the address is bad or the transport has stopped. In an actor, let it send
  /// the result to the actor as a message.
  void lookup(const std::string& address, const std::string& name, int timeout_ms,
              OnLookup on_done);

  /// Adds a callback. It is called for every peer whose established connection ends, for any
  /// reason. It runs on the transport thread.
  void on_peer_lost(OnPeerLost callback);
  /// Reports that a process is dead, for example because its parent has reaped it, or that it is no
  /// longer needed. If it lives, it gets the reason. Any thread.
  void peer_is_dead(const caf::node_id& node, const std::string& reason);

  TransportCounters counters() const;

  /// Injects a fault; it replaces an active one. Any thread.
  void inject(TransportFault fault);

  /// Sends a goodbye to all peers and ends the thread; remote actors are then down. May be called
  /// again. Any thread, but not from an actor.
  void stop();

 private:
  struct Impl;
  explicit Transport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale
