// The decisions of the supervisor as a function of plain data: decide(now, state, event) changes
// the state and returns actions and their reason. No clock, no I/O, no actors; any thread. The
// supervisor actor, its standby, the console's `plan`, the tests and the simulation call the same
// function (JOB-5).
//
// A job is a sequence of generations. In a generation the nodes of one layout (layout.hpp) train
// together. A generation ends when the layout changes or one of its trainers fails. The next
// generation begins at the newest step of which every shard has a copy:
//
//   after a failure   fence (ends at once)                        -> idle -> plan -> join
//   on request        leave (ends after a step; nothing is lost)  -> idle -> plan -> join
//
// decide() tries the cheapest remedy first: restart the processes of the same trainers, put a spare
// in the place of a lost node, form failure domains of the remaining nodes, train with
// fewer groups, wait for a node, stop.
//
// A generation that begins with an older state than the newest committed one rolls back the steps
// between them (Rollback). The states before and after a rollback are two branches: the
// abandoned branch, and the current one. A branch is named by any generation that made a step of
// it.
//
//   JOB-1  A committed step is never undone while a copy of every shard of it survives anywhere.
//          A run that gives up first saves the steps that only memory holds.
//   JOB-3  A generation begins with copies of one branch. A step that was rolled back and made again
//          in a later generation may have other bits, so older copies of it are never used, even if
//          there is one of every shard.
//   GEN-1  A message that carries another generation than the current one has no effect.
//   GEN-2  The number of a generation is used once, also by supervisors that do not know of each
//          other: each uses numbers of its own (State::generation_floor).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/supervisor/decision/layout.hpp"
#include "runtime/base/instruction_set.hpp"
#include "runtime/base/status.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale::job {

enum class TrainerState : unsigned char {
  down,      // no process, or none has reported yet
  idle,      // up, in no generation
  training,  // ordered to join the current generation
  draining,  // ordered to leave its generation, has not confirmed yet
  finished,  // has trained the run's last step
};

/// Replicas computed different states of `step` in `generation`, or its copies cannot be used.
struct SuspectStep {
  uint64_t step = 0, generation = 0;
};
constexpr size_t suspect_steps_kept = 16;

/// Generations could not begin because of the copies of `step` that `source`, a trainer or a node,
/// has: they are damaged or missing, whatever its agent reports.
struct BadCopy {
  std::string source;
  uint64_t step = 0, generation = 0;  // generation: the newest of those
  int times = 0;                      // their number
  bool operator==(const BadCopy&) const = default;
};

/// A rollback: states of `step` and later steps do not count if a generation in [since, generation)
/// made them. tentative: `generation` began with an older state, and no copy of a step that it made
/// is known. While a rollback is tentative, it can be reverted: the states that it rolled back
/// count again (JOB-1).
struct Rollback {
  uint64_t generation = 0, step = 0, since = 0;
  bool tentative = false;
};
constexpr size_t rollbacks_kept = 64;

struct Trainer {
  TrainerState state = TrainerState::down;
  int32_t pid = 0;
  std::vector<uint8_t> address;  // of the trainer's data plane
  std::vector<StateCopy> held;   // states in its memory
  uint64_t step = 0;             // the last one that the trainer reported
  uint64_t generation = 0;       // the newest that it was ordered to join, or reported to be in
  bool ready = false;            // has restored the state that the current generation begins with
  bool unreadable = false;       // got an I/O error from that generation's checkpoint
};

enum class NodeState : unsigned char {
  absent,   // its agent has not reported yet
  up,       // its agent reports
  suspect,  // up, but excluded until a diagnosis finds nothing wrong
  drained,  // up, but excluded: by its restart budget, a diagnosis, or a user
  lost,     // was up; its agent no longer reports
};
const char* to_string(NodeState state);

struct Node {
  NodeState state = NodeState::absent;
  int32_t pid = 0;                   // of the node's agent
  std::vector<uint8_t> address;      // of the agent's data plane; empty: the agent sends no state
  std::string reason;                // for `state`
  int64_t since_ms = 0;              // when `state` began
  std::vector<int64_t> failures_ms;  // when the node or its trainers failed, once for each cause;
                                     // forgotten after budget_steps committed steps without a
                                     // failure
  uint64_t failed_at_step = 0;       // the committed step at the newest failure
  bool checking = false;             // a diagnosis is running
  std::vector<StateCopy> peer;       // copies in the node's peer store
  uint64_t answered = 0;             // the newest fence that its agent has answered (PeerCopies)
  std::vector<std::string> failed;   // the node and the trainers that failed by the cause of the
                                     // newest of failures_ms; empty once they have recovered
  InstructionSet instructions = InstructionSet::automatic;  // the best that its host has
  uint32_t micro_batch_us = 0;  // how long its slowest trainer takes for one; 0: not known
  bool joins = false;           // it has joined the running job, and has been up since then
  bool leaves = false;          // it is to leave the run for good, once its memory is not needed
  bool ended = false;  // lost: its agent's process has ended, and what its memory held is gone
};

/// An agent that is to end. Its node's name may belong to another agent by now.
struct RemovedAgent {
  std::string node;
  int32_t pid = 0;
  std::vector<uint8_t> address;  // of its data plane
  bool operator==(const RemovedAgent&) const = default;
};
constexpr size_t removed_agents_kept = 64;

/// finished: all steps are trained; stopped: ended before that on request; failed: gave up.
enum class Phase : unsigned char {
  starting,
  training,
  recovering,
  stopping,
  finished,
  stopped,
  failed
};
/// True if the run has ended: decide() ignores all further events.
inline bool over(Phase phase) {
  return phase >= Phase::finished;
}
const char* to_string(Phase phase);

/// Changes of the learning rate that users have set.
struct Rates {
  std::vector<RateChange> changes;  // in order of steps; rate_changes_max at most
  double requested = -1;            // takes effect when the next generation begins; -1: none
  bool operator==(const Rates&) const = default;
};
constexpr size_t rate_changes_max = 1'000;

struct State {
  // Fixed by the configuration.
  LayoutRules rules;
  uint64_t max_steps = 0;
  int64_t join_timeout_ms = 120'000;    // for enough nodes to report, at the start or after a loss
  int64_t restart_timeout_ms = 10'000;  // limit for a node to restart its trainers
  int64_t fence_timeout_ms = 2'000;     // limit for a trainer to leave its generation
  int64_t save_timeout_ms = 600'000;    // limit for the last checkpoint to be saved
  int64_t check_timeout_ms = 60'000;    // limit for a diagnosis
  int give_up_after_cycles = 5;         // generations in a row without a committed step
  int max_restarts = 5;                 // more failures than this within within_ms drain a node
  int64_t within_ms = 600'000;
  uint64_t budget_steps = 50;
  double learning_rate = 0;       // the configured peak
  double min_learning_rate = -1;  // -1: a tenth of the peak
  // With which all trainers compute. automatic: the first generation chooses; all GPUs: none does.
  InstructionSet instructions = InstructionSet::automatic;
  bool balance = false;               // slower nodes may get fewer leaves (balance.hpp)
  uint64_t leaves = 1;                // micro-batches of a whole batch
  int64_t balance_pause_ms = 60'000;  // between two generations that begin for other shares
  // Changes during the run.
  Phase phase = Phase::starting;
  uint64_t generation = 0;              // the newest number that was used
  uint64_t generation_floor = 0;        // this supervisor uses greater numbers (GEN-2)
  std::vector<std::string> node_order;  // the preferred nodes first
  std::map<std::string, Node> nodes;    // a node is unknown before its first hello, unless the run
                                        // begins with it
  std::map<std::string, Trainer> trainers;
  std::vector<RemovedAgent> removed;    // the newest last, removed_agents_kept at most
  Layout layout;                        // of the current generation; empty before the first
  bool leaving = false;                 // the trainers are ordered to leave after a step
  bool paused = false;                  // stay idle until resumed
  std::vector<std::string> to_examine;  // nodes to diagnose once all trainers are idle
  std::vector<std::string> examined;    // nodes under diagnosis, which all trainers wait for
  bool had_checkpoint = false;  // there was one: the run never begins with initial values again
  bool has_checkpoint = false;
  uint64_t checkpoint_step = 0;  // of the newest valid checkpoint on disk
  StateVersion publishing;  // the publisher has all its shards and has not answered; step 0: none
  uint64_t failed_checkpoint = 0;  // newest step of a failed save, if the reason is not empty
  std::string failed_checkpoint_reason;
  std::vector<uint64_t> older_checkpoints;  // steps, the newest last; some may have been pruned
  std::vector<SuspectStep> suspect_steps;   // the newest last, suspect_steps_kept at most
  std::vector<BadCopy> bad_copies;          // since the last committed step
  std::vector<Rollback> rollbacks;  // rollbacks, the newest last, tentative ones at the end;
                                    // rollbacks_kept at most
  uint64_t committed_step = 0;
  uint64_t joined_step = 0;       // the step that the current generation began with
  int counted_steps = 0;          // of the current generation, by this supervisor. Not in
                                  // state_codec.hpp
  std::string joined_from;        // where that state came from: "memory", "peer copies", …
  Layout previous_layout;         // the layout of the generation before
  std::vector<uint32_t> weights;  // of the groups of `layout`, as in JoinGeneration
  int64_t balance_after_ms = 0;   // before then no generation begins for other shares
  int cycles = 0;                 // generations in a row without a committed step
  int proven_size = 0;  // nodes of a failure domain of the last layout that has committed a
                        // step; 0: none has
  std::map<int, int>
      failed_sizes;              // by such a size: its generations without a committed step since
                                 // its last one; not of the configured size
  int newer_states = 0;          // how many of `cycles` ended because a newer state came back. Not
                                 // in state_codec.hpp
  int64_t waiting_since_ms = 0;  // when the current wait began
  std::string waiting_for;       // what the wait is for, as text
  bool incident = false;         // from a failure to the next committed step
  int64_t plan_due_ms = -1;      // since when a plan waits for events that were received already;
                                 // -1: none waits. Not in state_codec.hpp: a Tick plans, too
  Rates rates;
  std::string bad_samples;  // of the newest value that was not finite, as --skip-samples takes them
  // The end of the run.
  bool stop_requested = false;
  bool giving_up = false;  // the run saves what only memory holds, then ends with `exit`
  int64_t giving_up_since_ms = 0;
  StateVersion
      saving;  // agents write the shards of this state; step 0: none. Not in state_codec.hpp: a new
               // supervisor begins again
  Code exit = Code::ok;
  std::string exit_reason;
  bool unrecorded_stop =
      false;  // only trainers know of the stop: no supervisor has recorded it, and
              // an agent may report the true reason and exit code later
};

// --- Events ---
// Some events are the messages that report them.
using simplescale::Fault, simplescale::NodeChecked, simplescale::PeerCopies,
    simplescale::TrainerDown, simplescale::TrainerFinished, simplescale::TrainerIdle,
    simplescale::TrainerReady, simplescale::TrainerUp;
/// The agent of a node reports. pid: the agent's. If the pid is known already, the same agent now
/// reports to a new supervisor. An unknown node joins the run. The instructions are as in NodeHello.
struct NodeUp {
  std::string node;
  int32_t pid = 0;
  std::vector<uint8_t> address = {};
  InstructionSet instructions = InstructionSet::automatic;
  InstructionSet run_instructions = InstructionSet::automatic;
};
/// The agent of a node no longer reports. A reason of the kind process_ended tells that its process
/// has ended, also of a node that is lost already.
struct NodeLost {
  std::string node;
  Reason reason;
};
/// Every trainer of the generation has reported the step.
struct StepCommitted {
  uint64_t generation = 0, step = 0;
};
/// How long nodes take for a micro-batch, measured over steps of this generation. stragglers: nodes
/// with a trainer that has been slow for long.
struct SpeedsMeasured {
  uint64_t generation = 0;
  std::map<std::string, uint32_t> micro_batch_us;  // by node
  std::set<std::string> stragglers;
};
/// All shards of this state are on disk. CheckpointSaved or CheckpointFailed follows.
struct CheckpointWritten {
  uint64_t step = 0, generation = 0;
};
struct CheckpointSaved {
  uint64_t step = 0;
  uint64_t generation = UINT64_MAX;  // that made the state; by default, the state is known to count
};
/// The steps of all checkpoints on the disk, the newest last. Empty only if it is certain that no
/// checkpoint can be used.
struct CheckpointsLeft {
  std::vector<uint64_t> steps;
};
struct CheckpointFailed {
  uint64_t step = 0;
  std::string reason;
  uint64_t generation = 0;  // that made the state
};
/// A trainer alone makes no progress, or computed a wrong state, or its log matched a rule.
struct Suspected {
  std::string trainer, reason;
};
/// A trainer of `generation` computes nothing, and all other trainers wait for it (stall.hpp).
struct TrainerHung {
  std::string trainer;
  uint64_t generation = 0;
  Reason reason;
};
// Requests. A request that cannot be met changes nothing; Decision::reason says why.
/// The run is to end. now: at once, without another step and without a checkpoint.
struct StopRequested {
  Code exit = Code::ok;
  std::string reason;
  bool now = false;
};
/// who: the user who asked, as text.
struct PauseRequested {
  bool pause = true;
  std::string who;
};
/// drain: exclude the node from training; false: let it train again. for_good: the node also leaves
/// the run, and its name is free.
struct DrainRequested {
  std::string node;
  bool drain = true;
  std::string reason;
  bool for_good = false;
};
/// Diagnose these nodes between two steps, while no trainer trains.
struct DiagnoseRequested {
  std::vector<std::string> nodes;
  std::string who;
};
/// Change one of settings() during the run. All but the learning rate are whole numbers.
struct SetRequested {
  std::string key;
  double value = 0;
  std::string who;
};
/// Time has passed; several times a second.
struct Tick {};
using Event = std::variant<NodeUp, NodeLost, TrainerUp, TrainerDown, TrainerIdle, TrainerReady,
                           PeerCopies, StepCommitted, SpeedsMeasured, TrainerFinished,
                           CheckpointWritten, CheckpointSaved, CheckpointsLeft, CheckpointFailed,
                           Suspected, TrainerHung, NodeChecked, StopRequested, PauseRequested,
                           DrainRequested, DiagnoseRequested, SetRequested, Tick>;

// --- Actions ---
using Fence = FenceGeneration;
using Leave = LeaveGeneration;
using StopAtStep = StopTraining;
using simplescale::KillTrainer;
using Source = JoinSource;
/// The trainers of state.layout join the generation and begin with the state of `step`. by_agents:
/// no trainer joins. Instead the source node of each move writes that shard from its memory to the
/// disk, and the moves have no targets.
struct Join {
  uint64_t generation = 0;
  Source source = Source::initialize;
  uint64_t step = 0;
  std::vector<Move> moves;
  bool save_only = false;  // the trainers train no step, save that state and finish
  bool by_agents = false;
  bool regained = false;  // the steps up to `step` were rolled back before, and count again
};
/// The node belongs to the run from now on: its first hello is decided and may be answered.
struct AdmitNode {
  std::string node;
};
/// The agent that reports by this name ends. exit: of its command.
struct EndNode {
  std::string node;
  Code exit = Code::ok;
  std::string reason;
};
/// Order a diagnosis of the node; NodeChecked answers.
struct CheckNode {
  std::string node, reason;
};
/// Remove the checkpoints that are not kept, up to the newest one that is known now (CHECKPOINT-1).
struct PruneCheckpoints {
  uint64_t step;
};
/// The run ends.
struct Shutdown {
  Code exit = Code::ok;
  std::string reason;
};
/// A line of events.jsonl. phase: the part of an incident ("detect", "fence", "abort", "decide",
/// "heal", "resume"), or "" outside of an incident. count: how many steps were undone or regained,
/// or the step of the checkpoint.
struct Record {
  std::string phase, kind, subject;
  Reason reason;
  uint64_t count = 0;
};
using Action = std::variant<Fence, Leave, Join, KillTrainer, CheckNode, StopAtStep, AdmitNode,
                            EndNode, PruneCheckpoints, Shutdown, Record>;

struct Decision {
  std::vector<Action> actions;
  std::string reason;  // one line for users; empty if nothing was decided
};

/// GEN-2: a supervisor that lost leadership may use numbers that its successor does not know, as
/// long as nodes follow it. That lasts about a second, in which it uses far fewer numbers than
/// these.
constexpr uint64_t unknown_generations = 100;
/// The generation floor to store in the file of a term. before: the floor in the file of
/// the term before; known: the newest generation that the claiming process knows, also from a state
/// that is in no file.
uint64_t claimed_generation_floor(uint64_t term, uint64_t before, uint64_t known);
/// State::generation_floor of the supervisor of a term. claimed: claimed_generation_floor(); known:
/// the newest generation in the run's files. The result exceeds that of the term before by at least
/// unknown_generations, even if both supervisors have read the same files.
uint64_t generation_floor_of(uint64_t term, uint64_t claimed, uint64_t known);
/// The state that a new supervisor begins with. generation_floor: as generation_floor_of(). now_ms: the
/// current wait begins again now, because the nodes have not yet told this supervisor what they did
/// since (JOB-1). State::generation stays the newest that the predecessor's state knows. If the
/// run's files name a newer one, the decision that began it is lost, and trainers in that
/// generation have to leave it (JOB-4).
State resumed(State predecessor, uint64_t generation_floor, int64_t now_ms);
/// LEAD-1: true if these actions must wait until the term files can be read, as long as some node
/// does not report to this supervisor: another supervisor may lead that node. stored: the standby
/// has stored the decision. GEN-2: both supervisors must not use the same number. JOB-1: a
/// supervisor that lost leadership must not order nodes to end, because they may hold the only
/// copies of a step. That is so even if its standby still follows it.
bool waits_for_folder(const std::vector<Action>& actions, bool stored);
/// Changes `state` and returns the actions, in order. now_ms: any monotonic clock, the same for all
/// calls. Ignores all events once the run is over (over(state.phase)). more: the caller has
/// received later events and decides them next. The next generation is then planned with the last
/// of these events, whatever its kind, or after plan_delay_max_ms.
Decision decide(int64_t now_ms, State& state, const Event& event, bool more = false);
constexpr int64_t plan_delay_max_ms = 1'000;

/// True from the request for a diagnosis until its end.
bool diagnosing(const State& state);

/// The keys of the configuration that SetRequested accepts, with their current values as text.
std::vector<std::pair<std::string, std::string>> settings(const State& state);
/// Why train.learning_rate cannot be set to this now; "" if it can.
std::string rate_refused(const State& state, double rate);
/// The shortest text that reads as this number.
std::string shortest(double value);

/// The state before the first event. nodes: names of all nodes with which the run begins, spares
/// included.
State make_state(const LayoutRules& rules, const std::vector<std::string>& nodes);

}  // namespace simplescale::job
