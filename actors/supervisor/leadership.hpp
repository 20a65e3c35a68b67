// Leadership. It replicates a decision to the standby before the decision is carried out, stops a
// supervisor with an older term, appoints and watches a standby, and, after a takeover,
// waits for the predecessor's nodes.
//
// Owned by the supervisor actor, called on its thread. Sends no message and touches no file: every
// call returns what the actor has to do, in order.
//
//   LEAD-1  At most one supervisor acts: before a change of membership, and twice a second, the
//           term files are read; a supervisor that is not the newest term neither acts nor writes
//           any more. A file system that hangs or fails is waited for no longer than kAnswerTimeout
//           if all nodes report to this supervisor, or if the standby has stored the decision and
//           it does not end the run (JOB-1). Otherwise a decision that uses a generation number
//           (GEN-2) or ends the run waits for it.
//
// Nodes that cannot reach the supervisor vote against it in the run folder. If more nodes vote
// against the supervisor than report to it, and no trainer trains, it resigns. Those nodes then go
// on without its side of the network. It does not resign
//   - while it trains, or when the voters have missed a step: what its side committed is the run's
//     history (JOB-1), and the voters wait;
//   - if its predecessor resigned and no step was made since: two supervisors in a row that are
//     lost_majority show that the network is not split in two.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/local.hpp"
#include "actors/supervisor/agent_registry.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/run/term.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// True if the run has ended: decide() ignores all further events.
inline bool over(const job::State& job) {
  return job::over(job.phase);
}

/// Makes the message of the TermWatch: what the term files say to the supervisor of `term`.
local::TermSeen term_seen(uint64_t question, uint64_t term, const TermView& view);

class Leadership {
 public:
  /// How long a decision waits for the standby and for the term files.
  static constexpr std::chrono::milliseconds kAnswerTimeout{200};

  struct Options {
    uint64_t term = 1;
    std::string node;      // the node of this supervisor
    std::string address;   // of this supervisor's transport
    bool elected = false;  // the predecessor resigned
    int64_t join_timeout_ms = 0, shutdown_ms = 0;
  };

  // --- What the actor has to do ---

  /// Send a snapshot of the state to the standby, if there is one. store: also write it to the run
  /// folder.
  struct Replicate {
    bool store = true;
  };
  /// A decision waits: call timed_out() with its number after kAnswerTimeout. check_term: also
  /// read the term files and call term_seen() with that number.
  struct Await {
    uint64_t decision = 0;
    bool check_term = false;
  };
  /// Carry out a decision. Then handle the events that waited for it: call next_event() until it
  /// returns none.
  struct CarryOut {
    std::vector<job::Action> actions;
  };
  /// Ask this node to start a standby.
  struct StartStandby {
    std::string node;
  };
  /// Tell the standby to end. Forget it, unless standby() still returns it.
  struct EndStandby {
    std::string reason;
  };
  /// Send announcement() to all nodes, even to those that are behind(), because it is no order.
  struct Announce {};
  /// End this process. deposed: write nothing to the run folder any more. resigns: another
  /// supervisor has to lead.
  struct EndProcess {
    int exit_code = 0;
    std::string reason;
    bool deposed = false, resigns = false;
  };
  using Action = std::variant<Replicate, Await, CarryOut, job::Record, StartStandby, EndStandby,
                              Announce, EndProcess>;
  using Actions = std::vector<Action>;

  Leadership() = default;
  Leadership(Options options, int64_t now_ms);
  /// Continues a predecessor's state. Its nodes are expected to join by expected_until_ms.
  void resume(const SupervisorState& from, int64_t expected_until_ms);
  void save(SupervisorState& to) const;

  // --- Decisions ---

  /// True if `event` may be decided now. False if this supervisor is deposed or a decision waits;
  /// in the second case it keeps the event for next_event(). It drops a Tick, because another one
  /// follows.
  bool admit(const job::Event& event);
  /// Takes the actions of a decision. This function or one of the next three returns them as
  /// CarryOut as soon as they may be carried out.
  Actions submit(std::vector<job::Action> actions);
  /// The standby has stored replica `sequence`.
  Actions replica_stored(uint64_t sequence);
  /// The term files have been read, for a decision or at regular intervals.
  Actions term_seen(const local::TermSeen& seen, const job::State& job, const AgentRegistry& agents,
                    int64_t now_ms);
  /// kAnswerTimeout has passed since this decision. Dismisses a standby that has not answered. Then
  /// stops waiting, or waits once more (LEAD-1).
  Actions timed_out(uint64_t decision, const job::State& job, const AgentRegistry& agents);
  /// Returns the next event that waited for a decision which has been carried out; none while a
  /// decision waits.
  std::optional<job::Event> next_event();
  /// True if more events wait for next_event().
  bool has_later() const { return !later_.empty(); }
  /// True if `node` was lost or came back since the decision that is carried out now, and that
  /// event still waits. The node's report when it came back predates this decision's orders, so it
  /// gets no orders before that event is decided (GEN-1).
  bool behind(const std::string& node) const { return behind_.contains(node); }
  /// Replicates a state that changed without a decision.
  Actions replicate();
  /// True once a supervisor of a newer term leads, or this supervisor has resigned.
  bool deposed() const { return deposed_; }

  // --- Standby ---

  /// The standby that was accepted, if there is one.
  const std::optional<StandbyHello>& standby() const { return standby_; }
  /// Call ten times a second. Asks a node to start a standby if there is none. It asks the first
  /// node in node_order that is connected, runs no supervisor, is not behind, and is not the last
  /// node that failed to start a standby.
  Actions tick(const job::State& job, const AgentRegistry& agents, int64_t now_ms);
  /// A process offers to be the standby. Returns nothing if no standby is wanted. A decision that
  /// waits for the term files now waits for this standby, too.
  Actions accept_standby(const StandbyHello& hello, const job::State& job);
  /// The connection to the standby is lost.
  Actions standby_lost(const job::State& job, const AgentRegistry& agents, int64_t now_ms);
  /// The message that names this supervisor and its standby to the nodes. recorded_step: as in
  /// Lead.
  Lead announcement(uint64_t recorded_step) const;

  // --- Nodes, and the end ---

  /// The agent of a node has sent its hello.
  void node_joined(const std::string& node, int64_t now_ms);
  /// Returns a loss for each of the predecessor's nodes that has not joined in time, once.
  std::vector<job::Event> missing_nodes(int64_t now_ms);
  /// Call ten times a second. Returns EndProcess once the job is over and all agents have
  /// disconnected, or 2 * shutdown_ms after the end; also if no agent has been connected for
  /// join_timeout_ms.
  Actions end_if_due(const job::State& job, const AgentRegistry& agents, int64_t now_ms);
  /// JOB-4: this process was stopped for that time. No node could report meanwhile.
  void stopped(int64_t ms);
  /// The message that tells nodes the end of the job.
  Shutdown end() const { return {end_exit_, end_reason_}; }

 private:
  /// True if there is no standby, or it has stored the newest decision.
  bool stored() const { return !standby_ || kept_ >= decision_; }
  void release(Actions& to);
  void appoint_standby(const job::State& job, const AgentRegistry& agents, int64_t now_ms,
                       Actions& to);
  void drop_standby(const std::string& reason, const job::State& job, Actions& to);
  bool lost_majority(const std::set<std::string>& votes, const job::State& job,
                     const AgentRegistry& agents, int64_t now_ms) const;

  Options options_;
  bool deposed_ = false;
  // Decisions.
  uint64_t sequence_ = 0;             // of the newest replica
  uint64_t decision_ = 0;             // the replica for which the newest decision waits
  std::vector<job::Action> waiting_;  // of that decision, until they may be carried out
  bool checked_ = true;               // the waiting decision was checked against the term files
  bool unanswered_ = false;           // the term files could not be read for that decision
  std::deque<job::Event> later_;
  std::multiset<std::string> behind_;  // the node of each NodeUp and NodeLost in later_
  // Standby.
  std::optional<StandbyHello> standby_;
  uint64_t kept_ = 0;   // the newest replica that it has stored
  std::string asked_;   // the node that was asked to start a standby
  std::string failed_;  // the node of the last standby that was lost or did not start
  int64_t asked_ms_ = 0;
  // Nodes, and the end. All times are of the actor clock.
  std::set<std::string> expected_;  // nodes of the predecessor that have not joined
  int64_t expected_until_ms_ = 0;
  int64_t joined_ms_ = 0;     // when a node joined last
  int64_t connected_ms_ = 0;  // when an agent was connected last
  std::optional<int64_t> over_since_ms_;
  int32_t end_exit_ = 0;
  std::string end_reason_;
};

}  // namespace simplescale
