// The node's connection to the current supervisor. The node actor uses this actor as if it were the
// supervisor. The link finds the supervisor through the term files (runtime/run/term.hpp),
// introduces the node to it, and relays commands to the node and reports to the supervisor. It
// keeps what a new supervisor must learn: the node's trainers, the generation of each, and the
// reports that are not in the run's records yet. While there is no supervisor, trainers continue.
//
//   LEAD-1  Commands have an effect only if the supervisor of the highest term known sent them.
//           The term files are read every second, so that the node also leaves a supervisor that
//           was replaced without noticing it.
//
// When the supervisor is lost, the link polls the term files and connects to the supervisor of the
// newest term. If no supervisor answers within a delay that grows with the node's index, the link
// starts one on this node. The first supervisor of a run is started by the same rule. If none
// answers for join_timeout_ms, as on a full disk, a node whose memory holds a state stays in the
// run.
//
// Runs on a CAF worker. No handler blocks: the term watch and lookups have threads of their own.
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
#include "runtime/run/term.hpp"
#include "transport/caf/message_types.hpp"

namespace simplescale {

struct LinkOptions {
  std::string node;
  int index = 0;                      // of the node; the lowest starts a supervisor first
  int64_t join_timeout_ms = 120'000;  // without a supervisor for so long, the node may leave
  std::shared_ptr<TermWatch> watch;
  /// Finds the supervisor actor of the process at an address. `done` is called once, on any thread.
  /// not_found: the process exists, but does not supervise yet.
  std::function<void(const std::string& address, std::function<void(Result<caf::actor>)> done)>
      lookup;
  /// Starts a supervisor process on this node. standby_of: address of the supervisor whose standby
  /// the process becomes; "": the process is no standby.
  std::function<Status(const std::string& standby_of)> start_supervisor;
  /// The steps whose state a trainer's memory holds now.
  std::function<std::vector<StateCopy>(const std::string& trainer)> held;
  /// Ends the connection to a supervisor's process, and sends it the reason: it must not count on
  /// this node any more.
  std::function<void(const caf::node_id& process, const std::string& reason)> disconnect;
};

namespace local {
/// The term watch sends this to the link: the contents of the term files; fields as in TermView.
struct TermsPolled {
  bool answered, current;
  uint64_t number;      // the newest term; 0: none
  std::string address;  // of its supervisor
  bool lives, resigned;
};
/// LinkOptions::lookup sends this to the link.
struct LookupDone {
  uint64_t number;        // the term
  caf::actor supervisor;  // null: see `error`
  std::string error;
  bool preparing = false;  // the process exists, but does not supervise yet
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
  uint64_t term = 0;        // term of the leader, or of the last leader
  Lead lead;                // the newest message of the leader
  uint64_t generation = 0;  // the newest that the node was ordered to join
  bool leaving = false;     // the node leaves the run: it looks for no new supervisor

  // While there is no leader. Times are of the actor clock.
  LeaderSearch search;
  int64_t checked_ms = 0;    // when join_timeout_ms was checked last
  int64_t start_at_ms = 0;   // when this node starts a supervisor
  uint64_t lookup_term = 0;  // the term of the last lookup
  bool lookup_pending = false;
  int64_t lookup_ms = 0;   // when the lookup began
  bool preparing = false;  // the process that was looked up does not supervise yet
  bool voted = false;      // this node votes against that supervisor
  bool stayed = false;     // join_timeout_ms has passed, but the node may not leave

  // What a new leader must learn.
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

/// For TermWatch's on_view.
local::TermsPolled terms_polled(const TermView& view);

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::TermsPolled)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::local::LookupDone)
