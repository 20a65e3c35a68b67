// A node's line to whoever is supervisor. The node actor talks to this actor as if it were the
// supervisor; it finds the real one through the epoch files, presents the node to it, passes
// commands and reports on, and keeps what a new supervisor would have to hear: who the node's
// trainers are, what they train in, and the reports that are not in the run's records yet. While
// there is no supervisor, trainers go on.
//
//   LEAD-1 Commands have an effect only if the supervisor of the highest epoch known sent them.
//
// When the line breaks: whoever has claimed a higher epoch is the new supervisor. If nobody has
// within a patience that grows with the node's number, this node starts a supervisor itself. That
// rule is also how the first one starts.
#pragma once

#include <caf/all.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/checkpoint/state_store.hpp"
#include "actors/local.hpp"
#include "runtime/run/epoch.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct LinkOptions {
  std::string node;
  int index = 0;  // of the node; the lower, the sooner it starts a supervisor
  int64_t join_timeout_ms = 120'000;
  std::shared_ptr<EpochWatch> watch;
  /// Finds the supervisor at an address; `done` is called once, on any thread.
  std::function<void(const std::string& address, std::function<void(Result<caf::actor>)> done)>
      lookup;
  /// Starts a supervisor's process on this node; standby_of: as the standby of that one.
  std::function<Status(const std::string& standby_of)> start_supervisor;
  /// Steps that a trainer's memory holds now.
  std::function<HeldState(const std::string& trainer)> held;
};

namespace local {
/// The epoch watch -> link.
struct EpochsSeen {
  bool answered, current;
  uint64_t number;
  std::string address;
  bool lives, resigned;
};
/// A lookup's end -> link.
struct SupervisorFound {
  uint64_t number;
  caf::actor supervisor;  // invalid: `error`
  std::string error;
  bool prepares = false;  // its process is there, but does not supervise yet
};
}  // namespace local

struct LinkState {
  static inline const char* name = "supervisor_link";
  struct Trainer {
    TrainerUp up;
    std::optional<TrainerDown> down;  // since
    std::optional<TrainerIdle> idle;  // since it joined
  };
  using Report = std::variant<StepDone, Validated, TrainerReady, TrainerFinished, ShardSaved>;
  LinkOptions options;
  caf::actor node, leader;
  uint64_t generation = 0;  // the newest that a command named
  uint64_t epoch = 0;       // of the leader, or of the last one
  Lead lead;                // what it said of itself last
  uint64_t asked = 0;       // epoch that is being looked up
  bool asking = false;
  int64_t asked_at_ms = 0, alone_since_ms = 0, start_at_ms = 0;
  // Of the newest epoch that is seen while there is no supervisor.
  uint64_t seen = 0;
  int64_t seen_since_ms = 0, beat_at_ms = 0;
  bool prepares = false, votes = false;
  bool over = false;
  std::optional<NodeHello> hello;
  std::map<std::string, Trainer> trainers;
  std::optional<PeerCopies> copies;
  std::optional<RequestStop> stop;
  std::deque<Report> reports;
};

/// The node actor is whoever sends the NodeHello.
caf::behavior supervisor_link(caf::stateful_actor<LinkState>* self, LinkOptions options);

/// For the watch's on_view.
local::EpochsSeen epochs_seen(const EpochView& view);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::EpochsSeen)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::SupervisorFound)
