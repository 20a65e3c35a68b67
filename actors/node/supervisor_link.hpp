// The node's connection to the current supervisor. The node actor talks to this actor as if it were
// the supervisor. The link finds the supervisor through the epoch files (runtime/run/epoch.hpp),
// introduces the node to it, relays its commands to the node and the node's reports to it. It keeps
// what a new supervisor must be told: the node's trainers, the generation of each, and the reports
// that are not in the run's records yet. While there is no supervisor, trainers go on.
//
//   LEAD-1  Commands have an effect only if the supervisor of the highest epoch known sent them.
//           The epoch files are read every second, so that the node also leaves a supervisor that
//           was replaced without noticing it.
//
// When the supervisor is lost, the link polls the epoch files and connects to the supervisor of the
// newest epoch. If none answers within a delay that grows with the node's index, the link starts a
// supervisor on this node. The first supervisor of a run is started by the same rule. If none
// answers for join_timeout_ms, as on a full disk, a node whose memory holds a state stays.
//
// Runs on a CAF worker. No handler blocks: the epoch watch and lookups have threads of their own.
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
#include "actors/node/leader_search.hpp"
#include "runtime/run/epoch.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct LinkOptions {
  std::string node;
  int index = 0;                      // of the node; a lower one starts a supervisor sooner
  int64_t join_timeout_ms = 120'000;  // without a supervisor for so long, the node may leave
  std::shared_ptr<EpochWatch> watch;
  /// Finds the supervisor actor of the process at an address. `done` is called once, on any thread;
  /// not_found: the process is there, but does not supervise yet.
  std::function<void(const std::string& address, std::function<void(Result<caf::actor>)> done)>
      lookup;
  /// Starts a supervisor process on this node. standby_of: address of the supervisor whose standby
  /// it is to be; "": none.
  std::function<Status(const std::string& standby_of)> start_supervisor;
  /// The steps whose state a trainer's memory holds now.
  std::function<HeldState(const std::string& trainer)> held;
  /// Ends the connection to a supervisor's process, and tells it why: it must not count on this
  /// node any more.
  std::function<void(const caf::node_id& process, const std::string& reason)> disconnect;
};

namespace local {
/// Epoch watch -> link: what the epoch files say; fields as in EpochView.
struct EpochsPolled {
  bool answered, current;
  uint64_t number;      // of the newest epoch; 0: none
  std::string address;  // of its supervisor
  bool lives, resigned;
};
/// LinkOptions::lookup -> link.
struct LookupDone {
  uint64_t number;        // epoch
  caf::actor supervisor;  // null: see `error`
  std::string error;
  bool preparing = false;  // the process is there, but does not supervise yet
};
}  // namespace local

struct LinkState {
  static inline const char* name = "supervisor_link";
  struct Trainer {
    TrainerUp up;
    std::optional<TrainerDown> down;  // set if the process has ended since
    std::optional<TrainerIdle> idle;  // set if it has left its newest generation
  };
  using Report = std::variant<StepDone, Validated, TrainerReady, TrainerFinished, ShardSaved>;
  LinkOptions options;
  caf::actor node;
  caf::actor leader;        // the supervisor; null: not connected
  uint64_t epoch = 0;       // of the leader, or of the last one
  Lead lead;                // the leader's newest
  uint64_t generation = 0;  // the newest that the node was ordered to join
  bool leaving = false;     // the node leaves the run: no new supervisor is looked for

  // While there is no leader. Times are of the actor clock.
  LeaderSearch search;
  int64_t checked_ms = 0;     // when join_timeout_ms was checked last
  int64_t start_at_ms = 0;    // when this node starts a supervisor
  uint64_t lookup_epoch = 0;  // of the last lookup
  bool lookup_pending = false;
  int64_t lookup_ms = 0;   // when it began
  bool preparing = false;  // its process does not supervise yet
  bool voted = false;      // this node votes against it
  bool stayed = false;     // join_timeout_ms has passed, but the node may not leave

  // What a new leader must be told.
  std::optional<NodeHello> hello;
  std::map<std::string, Trainer> trainers;
  std::optional<PeerCopies> copies;
  std::optional<RequestStop> stop;
  std::deque<Report> reports;  // the newest last
};

/// The actor that sends the NodeHello is the node.
caf::behavior supervisor_link(caf::stateful_actor<LinkState>* self, LinkOptions options);

/// True if the memory of the node holds a state of training.
bool holds_state(const LinkState& state);

/// For EpochWatch's on_view.
local::EpochsPolled epochs_polled(const EpochView& view);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::EpochsPolled)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::LookupDone)
