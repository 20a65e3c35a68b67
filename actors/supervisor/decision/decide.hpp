// The decisions of the supervisor as a function of plain data: decide(now, state, event) changes
// the state and returns actions and their reason. No clock, no I/O, no actors; any thread. The
// supervisor actor, its standby, the console's `plan`, the tests and the simulation call the same
// function.
//
// A job is a sequence of generations. In a generation the nodes of one layout (layout.hpp) train
// together. It ends when the layout changes or one of its trainers fails. The next generation
// begins at the newest step of which every shard has a copy:
//
//   after a failure   fence (ends at once)                        -> idle -> plan -> join
//   on request        leave (ends after a step; nothing is lost)  -> idle -> plan -> join
//
// The cheapest remedy is tried first: the same trainers with restarted processes, a spare in place
// of a lost node, cells made of the remaining nodes, fewer groups, waiting for a node, stopping.
//
//   JOB-1  A committed step is never undone while a copy of every shard of it survives anywhere.
//          A run that gives up first saves the steps that only memory holds.
//   JOB-3  A generation begins with copies of one history. A step that was undone and made again in
//          a later generation may have other bits, so older copies of it are never used, even if
//          there is one of every shard.
//   GEN-1  A message that carries another generation than the current one has no effect.
//   GEN-2  The number of a generation is used once, also by supervisors that do not know of each
//          other: each uses numbers of its own (State::generations_above).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/supervisor/decision/layout.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/held_step.hpp"
#include "runtime/training/rate_change.hpp"

namespace simplescale::job {

enum class TrainerState : unsigned char {
  down,      // no process, or none has reported yet
  idle,      // up, in no generation
  training,  // ordered to join the current generation
  draining,  // ordered to leave its generation, has not confirmed yet
  finished,  // has trained the run's last step
};

/// Replicas computed different states of `step` in `generation`.
struct SuspectStep {
  uint64_t step = 0, generation = 0;
};
constexpr size_t suspect_steps_kept = 16;

/// States of `step` and later steps that generations from `since` on, and before `generation`, made
/// are undone. tentative: `generation` began with an older state, and no copy of a step that it
/// made is known. Until then the undone states may still be used instead (JOB-1).
struct Undoing {
  uint64_t generation = 0, step = 0, since = 0;
  bool tentative = false;
};
constexpr size_t undoings_kept = 64;

struct Trainer {
  TrainerState state = TrainerState::down;
  int32_t pid = 0;
  std::vector<uint8_t> address;  // of its data plane
  uint32_t shard = 0;            // whose state it holds
  std::vector<HeldStep> held;    // states in its memory
  uint64_t step = 0;             // the last one that it reported
  uint64_t generation = 0;       // the newest one that it was ordered to join, or said it is in
  bool ready = false;            // has restored the state that the current generation begins with
  bool unreadable = false;       // reading that generation's checkpoint gave it an I/O error
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
  int32_t pid = 0;                   // of its agent
  std::vector<uint8_t> address;      // of its agent's data plane; empty: the agent sends no state
  std::string reason;                // for `state`
  int64_t since_ms = 0;              // when `state` began
  std::vector<int64_t> failures_ms;  // when the node or its trainers failed, once for each cause;
      // forgotten after budget_steps committed steps without a failure
  uint64_t failed_at_step = 0;      // the committed step at the newest failure
  bool checking = false;            // a diagnosis is running
  std::vector<PeerCopy> peer;       // in its peer store
  uint64_t answered = 0;            // the newest fence that its agent has answered (PeerCopies)
  std::vector<std::string> failed;  // the node and trainers that the cause of the newest of
                                    // failures_ms made fail; empty once they have recovered
};

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
/// The run has ended: nothing is decided any more.
inline bool over(Phase phase) {
  return phase >= Phase::finished;
}
const char* to_string(Phase phase);

/// Where the state that a generation begins with comes from.
enum class Source : unsigned char { initialize, checkpoint, memory };
const char* to_string(Source source);

/// What users have set of the learning rate.
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
  int64_t restart_timeout_ms = 10'000;  // for a node to restart its trainers
  int64_t fence_timeout_ms = 2'000;     // for a trainer to leave its generation
  int64_t save_timeout_ms = 600'000;    // for the last checkpoint
  int64_t check_timeout_ms = 60'000;    // for a diagnosis
  int give_up_after_cycles = 5;         // generations in a row without a committed step
  int max_restarts = 5;                 // more failures than this within within_ms drain a node
  int64_t within_ms = 600'000;
  uint64_t budget_steps = 50;
  double learning_rate = 0;       // the configured peak
  double min_learning_rate = -1;  // -1: a tenth of the peak
  // Changes during the run.
  Phase phase = Phase::starting;
  uint64_t generation = 0;              // the newest number that was used
  uint64_t generations_above = 0;       // this supervisor uses greater numbers (GEN-2)
  std::vector<std::string> node_order;  // the preferred nodes first
  std::map<std::string, Node> nodes;
  std::map<std::string, Trainer> trainers;
  Layout layout;                        // of the current generation; empty before the first
  bool leaving = false;                 // the trainers were ordered to leave after a step
  bool paused = false;                  // stay idle until resumed
  std::vector<std::string> to_examine;  // nodes to diagnose once all trainers are idle
  std::vector<std::string> examined;    // nodes under diagnosis, which all trainers wait for
  bool had_checkpoint = false;  // there was one: the run never begins with initial values again
  bool has_checkpoint = false;
  uint64_t checkpoint_step = 0;  // of the newest valid checkpoint on disk
  HeldStep publishing;  // the publisher has all its shards and has not answered; step 0: none
  uint64_t failed_checkpoint = 0;  // newest step of a failed save, if the reason is not empty
  std::string failed_checkpoint_reason;
  std::vector<uint64_t> older_checkpoints;  // steps, the newest last; some may have been pruned
  std::vector<SuspectStep> suspect_steps;   // the newest last, suspect_steps_kept at most
  std::vector<Undoing> undoings;  // the newest last, tentative ones at the end; undoings_kept
                                  // at most
  uint64_t committed_step = 0;
  uint64_t joined_step = 0;      // the step that the current generation began with
  std::string joined_from;       // where that state came from: "memory", "peer copies", …
  Layout previous_layout;        // of the generation before
  int cycles = 0;                // generations in a row without a committed step
  int newer_states = 0;          // of these, how many ended because a newer state came back. Not in
                                 // state_codec.hpp
  int64_t waiting_since_ms = 0;  // when the current wait began
  std::string waiting_for;       // what the wait is for, as text
  bool incident = false;         // from a failure to the next committed step
  int64_t plan_due_ms = -1;      // a plan waits since then for the events that are known already;
                                 // -1: none waits. Not in state_codec.hpp: a Tick plans, too
  Rates rates;
  std::string bad_samples;  // of the newest value that was not finite, as --skip-samples takes them
  // The end of the run.
  bool stop_requested = false;
  bool giving_up = false;  // the run saves what only memory holds, then ends with `exit`
  int64_t giving_up_since_ms = 0;
  HeldStep
      saving;  // agents write the shards of this state; step 0: none. Not in state_codec.hpp: a
               // new supervisor begins again
  Code exit = Code::ok;
  std::string exit_reason;
};

// --- Events ---
/// The agent of a node reports. pid: of the agent; a pid that is known already means that the agent
/// reports to a new supervisor.
struct NodeUp {
  std::string node;
  int32_t pid = 0;
  std::vector<uint8_t> address;
};
/// The agent of a node no longer reports.
struct NodeLost {
  std::string node, reason;
};
/// A trainer's process is up. generation: the one that it trains in, reported to a new supervisor;
/// 0: none.
struct TrainerUp {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> address;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  uint64_t generation = 0;
};
/// A trainer's process has ended. restarting: its node starts it again.
struct TrainerDown {
  std::string trainer, reason;
  bool restarting = true;
};
/// Why a trainer left a generation.
enum class Fault : unsigned char {
  none,            // it was ordered to
  failed,          // a collective failed, a peer was lost, or a timeout
  non_finite,      // loss or gradient norm
  mismatch,        // replicas differ in the state of `step`
  bad_copy,        // the copy that `suspect` sent is damaged
  bad_checkpoint,  // the checkpoint of `step` is damaged or missing
  bad_disk,        // the checkpoint of `step` gave an I/O error and may be intact
  bad_tokens,      // the token file has a token that the model does not know
};
/// A trainer has left `generation` and waits for orders. suspect: the trainer at fault, or "". Of a
/// trainer that is not up its agent reports what the trainer's memory holds. With the name of a
/// node: its agent could not send a copy.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation = 0;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  Fault fault = Fault::none;
  uint64_t step = 0;
  std::string suspect;
  std::string reason;
  std::string samples;  // of a value that is not finite, as --skip-samples takes them
};
/// A trainer has restored the state that its generation begins with.
struct TrainerReady {
  std::string trainer;
  uint64_t generation = 0;
};
/// The peer store of a node holds these copies now. fence: the agent's answer to this fence; from now
/// on its store takes no copy that an older generation made, and what the memory of each of its
/// trainers holds has been reported, or follows when the trainer leaves its generation. 0: no answer.
struct PeerCopies {
  std::string node;
  std::vector<PeerCopy> copies;
  uint64_t fence = 0;
};
/// Every trainer of the generation has reported the step.
struct StepCommitted {
  uint64_t generation = 0, step = 0;
};
/// A trainer has trained the run's last step.
struct TrainerFinished {
  std::string trainer;
  uint64_t generation = 0, step = 0;
};
/// All shards of this state are on disk. CheckpointSaved or CheckpointFailed follows.
struct CheckpointWritten {
  uint64_t step = 0, generation = 0;
};
struct CheckpointSaved {
  uint64_t step = 0;
  uint64_t generation = UINT64_MAX;  // that made the state; by default it is known to count
};
/// The steps of all checkpoints on the disk, the newest last; empty only if it is known that none of
/// them can be used.
struct CheckpointsLeft {
  std::vector<uint64_t> steps;
};
struct CheckpointFailed {
  uint64_t step = 0;
  std::string reason;
  uint64_t generation = 0;  // that made the state
};
/// A trainer alone makes no progress, computed a wrong state, or matched a log rule.
struct Suspected {
  std::string trainer, reason;
};
/// A trainer of `generation` computes nothing, and all others wait for it (stall.hpp).
struct TrainerHung {
  std::string trainer;
  uint64_t generation = 0;
  std::string reason;
};
/// The diagnosis of a node has ended. ok: nothing is wrong.
struct NodeChecked {
  std::string node;
  bool ok = false;
  std::string reason;
};
// Requests. A request that cannot be met changes nothing; Decision::reason says why.
/// now: without another step and without a checkpoint.
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
/// drain = false: take the node back.
struct DrainRequested {
  std::string node;
  bool drain = true;
  std::string reason;
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
                           PeerCopies, StepCommitted, TrainerFinished, CheckpointWritten,
                           CheckpointSaved, CheckpointsLeft, CheckpointFailed, Suspected,
                           TrainerHung, NodeChecked, StopRequested, PauseRequested, DrainRequested,
                           DiagnoseRequested, SetRequested, Tick>;

// --- Actions ---
/// All trainers leave generations older than this one at once.
struct Fence {
  uint64_t generation = 0;
  std::string reason;
};
/// All trainers leave this generation after a step.
struct Leave {
  uint64_t generation = 0;
  std::string reason;
};
/// The trainers of state.layout join the generation and begin with `step`. by_agents: no trainer joins;
/// the node that is the source of a move writes that shard to the disk from its memory, and the
/// moves have no targets.
struct Join {
  uint64_t generation = 0;
  Source source = Source::initialize;
  uint64_t step = 0;
  std::vector<Move> moves;
  bool save_only = false;  // they train no step, save that state and finish
  bool by_agents = false;
  bool regained = false;  // the steps up to `step` had been undone, and count again
};
struct KillTrainer {
  std::string trainer, reason;
};
/// Diagnose the node; answered by NodeChecked.
struct CheckNode {
  std::string node, reason;
};
/// All trainers agree on a last step, save it and finish.
struct StopAtStep {
  std::string reason;
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
/// A line of events.jsonl. phase: of an incident ("detect", "fence", "abort", "decide", "heal",
/// "resume"), or "" outside of one.
struct Record {
  std::string phase, kind, subject, reason;
};
using Action = std::variant<Fence, Leave, Join, KillTrainer, CheckNode, StopAtStep,
                            PruneCheckpoints, Shutdown, Record>;

struct Decision {
  std::vector<Action> actions;
  std::string reason;  // one line for users; empty if nothing was decided
};

/// True if replicas differed in the state of `step` that `generation` made.
bool is_suspect(const State& state, uint64_t step, uint64_t generation);
/// True if the undoing is about what `generation` made.
bool undoes(const Undoing& undoing, uint64_t generation);
/// The history that counts. One that was left may count instead, while the undoings that left it are
/// tentative (JOB-1). It is named by a generation that made a step of it.
constexpr uint64_t newest_history = UINT64_MAX;
/// True if the undoing is taken back for that history to count.
bool taken_back(const Undoing& undoing, uint64_t history);
/// True if the state of `step` that `generation` made is not one of that history (JOB-3).
bool undone(const State& state, uint64_t step, uint64_t generation,
            uint64_t history = newest_history);
/// A generation has undone the step, so that the publisher set a checkpoint of it aside that it had
/// published before; also if the step was regained since.
bool set_aside(const State& state, uint64_t step, uint64_t generation);
/// Neither suspect nor undone: a generation may begin with a copy of it.
bool trusted(const State& state, uint64_t step, uint64_t generation,
             uint64_t history = newest_history);
/// A step was made since the newest undoing: none is tentative any more.
void settle_undoings(State& state);
/// The newest generation that trainers joined. Faults of older ones have been handled.
uint64_t newest_joined(const State& state);
/// GEN-2: a deposed supervisor may use numbers that its successor cannot know, while nodes still
/// follow it. In the second that they take to leave it, it uses far fewer than these.
constexpr uint64_t unknown_generations = 100;
/// The number for the file of an epoch. before: that in the file of the epoch before; known: the
/// newest that the claiming process knows, also from a state that is in no file.
uint64_t number_claimed(uint64_t epoch, uint64_t before, uint64_t known);
/// State::generations_above of the supervisor of an epoch. claimed: number_claimed(); known: the
/// newest in the run's files. The result is greater than that of the epoch before by
/// unknown_generations or more, also if both supervisors have read the same files.
uint64_t numbers_above(uint64_t epoch, uint64_t claimed, uint64_t known);
/// The state that a new supervisor begins with. Its generation remains the newest one that the
/// predecessor's state knows, though the run's files may name a newer one: then a decision of the
/// predecessor is lost, and a trainer in that generation has to leave it (JOB-4). generations_above:
/// as numbers_above(). now_ms: the current wait begins anew, since the nodes have yet to report to
/// this supervisor what they did since (JOB-1).
State resumed(State predecessor, uint64_t generations_above, int64_t now_ms);
/// LEAD-1: true if these actions wait for the epoch files while a node does not report to this
/// supervisor: another supervisor may lead that node. stored: the standby has them. GEN-2: both must
/// not use one number. JOB-1: nodes that a deposed supervisor tells to end may hold the only copies
/// of a step, also if its standby still follows it.
bool waits_for_folder(const std::vector<Action>& actions, bool stored);
/// For records that end with `step`, made in `generation`: the newest step that is still committed.
/// Records keep steps that were undone until the steps are made again.
uint64_t committed_of(const State& state, uint64_t step, uint64_t generation);
/// For a new supervisor: the newest step of the current history that the records hold, so that they
/// go on after it. Nothing: no generation has begun. last: the last whole step in the files, if there
/// is one. said: as SupervisorState::recorded_step of the predecessor, if it knows that.
std::optional<uint64_t> recorded_of(const State& state, const std::optional<HeldStep>& last,
                                    std::optional<uint64_t> said);

/// Changes `state` and returns the actions, in order. now_ms: any monotonic clock, the same for all
/// calls. Ignores all events once the phase is finished or failed. more: the caller has later events
/// already, and decides them next; the next generation is planned with the last of them, whatever
/// its kind, or after plan_delay_max_ms.
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

/// The state before the first event. nodes: names of all nodes, spares included.
State make_state(const LayoutRules& rules, const std::vector<std::string>& nodes);

}  // namespace simplescale::job
