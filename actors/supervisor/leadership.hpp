// How the supervisor actor leads: what is decided is replicated to a standby before it is acted on,
// an older epoch is deposed, a standby is appointed and watched, and one that took over waits for
// the nodes it expects. Functions on the supervisor actor's state, run by that actor.
//
//   LEAD-1 At most one supervisor acts: before a change of membership, and twice a second, the epoch
//      files are looked at; a supervisor that is not the newest epoch acts and writes no more. A
//      file system that hangs is waited for no longer than kPatience.
//
// A supervisor that has no generation at work, and cannot be reached by more nodes than report to
// it (they vote in the run's folder), resigns: they go on without its side of the network. One that
// trains, or has trained without them, does not: what its side commits is the run's history (JOB-1),
// and the others wait. Nor does its successor before it has trained: that it is no better off shows
// that the network is not cut in two.
#pragma once

#include <caf/all.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/local.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/run/epoch.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct JobState;

/// What a supervisor is told about its place in the row of supervisors.
struct LeadershipOptions {
  uint64_t epoch = 1;
  std::string address;   // of its transport
  std::string instance;  // of this start of the run
  std::shared_ptr<EpochWatch> watch;
  std::optional<SupervisorState> state;  // of the one before it
  std::string lost;                      // what became of that one
  int64_t lost_at_ms = 0;                // when, by the actor clock
  bool silent = false;                   // it was noticed by silence, so nodes may notice as late
  bool elected = false;                  // it resigned
  /// Called once, at the end. resigns: somebody else is to lead.
  std::function<void(int exit_code, std::string reason, bool resigns)> finished;
};

struct Leadership {
  struct Standby {
    caf::actor handle;
    std::string node, address;
    int32_t pid = 0;
  };
  std::optional<Standby> standby;
  std::string asked, failed;  // nodes: which is to host one; which could not
  int64_t asked_at_ms = 0;
  // The decision that is not acted on yet, and what comes meanwhile.
  uint64_t sequence = 0, decision = 0;
  std::vector<job::Action> waiting;
  bool kept = true, checked = true;
  std::deque<job::Event> later;
  // Nodes that the one before had, until they have come.
  std::set<std::string> expected;
  int64_t expected_until_ms = 0;
  uint64_t told_step = 0;
  int64_t alone_since_ms = 0;
  int64_t last_came_ms = 0;  // when a node last presented itself
  int64_t over_since_ms = 0;
  bool over = false, deposed = false;
  int32_t end_exit = 0;
  std::string end_reason;
  // The supervisor actor's own.
  std::function<void(const std::vector<job::Action>&)> act;
  std::function<void(const job::Event&)> handle;
};

namespace leadership {

using Self = caf::stateful_actor<JobState>;

/// Takes the former supervisor's state over, if there is one; starts looking at the epochs.
void begin(Self* self);
/// True: the event has been put off until the last decision is acted on.
bool put_off(Self* self, const job::Event& event);
/// The actions are carried out (act) as soon as they may be.
void submit(Self* self, std::vector<job::Action> actions);
/// The standby, and the run's folder, get what has changed beside decisions.
void replicate(Self* self);
/// After a node has presented itself: tells it who leads, and what it may have missed.
void node_came(Self* self, const std::string& node);
void tick(Self* self);
/// True if it was the standby that ended.
bool went_down(Self* self, const caf::down_msg& down);
/// Handlers of the actor's messages.
void standby_came(Self* self, const StandbyHello& hello);
void replica_kept(Self* self, const ReplicaKept& kept);
void epoch_seen(Self* self, const local::EpochSeen& seen);
void waited(Self* self, const local::WaitedLongEnough& wait);
SupervisorState snapshot(Self* self);

}  // namespace leadership
}  // namespace simplescale
