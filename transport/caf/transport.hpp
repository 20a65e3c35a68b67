// Remote actors as ordinary CAF handles, over UCX active messages. One Transport per process owns
// the UCX worker and the transport thread. Behind a handle that lookup() gave, send, request with
// deadline, monitor, link, down and exit behave as between actors of one process:
//
// ACTOR-1: messages between two actors arrive in the order sent, each at most once; what does not arrive
// is followed by `down`. ACTOR-2: when an actor ends, everybody who knows it learns the reason; when its
// process is lost, the reason is
//     caf::exit_reason::remote_link_unreachable.
// ACTOR-3: a request whose receiver has ended or whose process is lost fails at once with
// caf::sec::request_receiver_down. ACTOR-4: nothing a peer sends crashes this process or makes it hold
// memory without bound.
//
// Wire rule: a remote message holds exactly one struct of transport/protocol/messages.hpp (a
// response may also be void or an error). Anything else is refused here: counted, logged once per
// type, and its request fails with caf::sec::unknown_type. Handlers that a remote message wakes up
// run on the transport thread (unless detached): they must not block.
#pragma once

#include <sys/types.h>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/node_id.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

struct TransportOptions {
  std::string run_id;                     // processes of another run are refused
  std::string key;                        // 32 bytes that all processes of the run have, no others
  uint64_t message_bytes_max = 16 << 20;  // encoded size; larger ones are refused on both sides
  uint64_t queue_bytes_max =
      64 << 20;                 // sent but not taken, per peer; a peer beyond it is given up
  uint32_t heartbeat_ms = 500;  // sent to a peer when nothing else was; 0: no heartbeats
  uint32_t silence_ms = 5000;   // a peer that was silent for so long is lost; 0: never
  uint32_t spin_us = 50;        // how long to poll for the next message before sleeping; 0: never
  uint32_t peers_max = 4096;
  uint32_t actors_max = 65536;  // remote actors known here, and unanswered requests, per peer
};

/// What went over the wire and what was thrown away, since the start.
struct TransportCounters {
  uint64_t sent = 0, received = 0;  // envelopes
  uint64_t malformed = 0;           // not an envelope, or one that makes no sense
  uint64_t unknown = 0;      // from a newer program: a kind or type that this one does not have
  uint64_t oversized = 0;    // beyond message_bytes_max, here or there
  uint64_t unsupported = 0;  // local messages that the wire rule does not allow
  uint64_t dropped = 0;      // for an actor or a connection that is no more
};

/// Trouble on purpose with all peers but the processes `spared`: a part of the messages is lost
/// both ways (1: all, as in a partition), the rest is sent delay_ms later. Heartbeats are messages,
/// too. A connection on which one was lost hands out nothing that came after it, and ends as
/// silent.
struct TransportFault {
  double lose = 0;
  uint32_t delay_ms = 0;
  uint32_t for_ms = 0;
  std::vector<pid_t> spared;  // of this pid namespace
};

class Transport {
 public:
  using OnLookup = std::function<void(Result<caf::actor>)>;
  using OnPeerLost = std::function<void(const caf::node_id&, const std::string& reason)>;

  /// Must have been applied to the configuration of the actor system that start() gets: registers
  /// the messages, and gives the system a node id.
  static void configure(caf::actor_system_config& config);

  /// Opens UCX and starts the thread. Fails if UCX cannot start, or messages.hpp and protocol.capnp
  /// disagree. Stop (or destroy) the transport before the actor system.
  static Result<std::unique_ptr<Transport>> start(caf::actor_system& system,
                                                  TransportOptions options);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// One line of text for others to connect to, by file, environment or argument.
  const std::string& address() const;

  /// Makes an actor available to lookup(). An actor that has ended stays published: who looks it up
  /// learns that it is down. Publishing another one under the name replaces it. Any thread.
  void publish(const std::string& name, caf::actor actor);

  /// Connects to a process, if not yet connected, and resolves an actor that it published.
  /// Code::bad_data for a bad address, unavailable if it cannot be reached or refuses (another run,
  /// another key or protocol), not_found, deadline, aborted if this transport stops. Blocks: for
  /// main() and tests, never in an actor.
  Result<caf::actor> lookup(const std::string& address, const std::string& name, int timeout_ms);
  /// The same without blocking; `on_done` runs exactly once, on the transport thread. Actors send
  /// themselves a message.
  void lookup(const std::string& address, const std::string& name, int timeout_ms,
              OnLookup on_done);

  /// Called on the transport thread for every peer that was connected and is no longer, whatever
  /// the reason.
  void on_peer_lost(OnPeerLost callback);
  /// Tells that a process is known to be dead (its parent saw it end), which UCX may notice late or
  /// never. Any thread.
  void peer_is_dead(const caf::node_id& node, const std::string& reason);

  TransportCounters counters() const;

  /// In place of the fault before, if one lasts. Any thread.
  void inject(TransportFault fault);

  /// Says goodbye to all peers and ends the thread: remote actors are then down. Idempotent; not
  /// from an actor.
  void stop();

 private:
  struct Impl;
  explicit Transport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale
