// What the supervisor decides, as a pure function: decide(now, state, event) -> actions and the
// reason for them.
//
// Plain data in and out: no clock, no I/O, no actors. The same function serves the supervisor
// actor, its standby, the console's `plan`, tests and simulation. A job is a sequence of
// generations. In one of them a layout of cells (layout.hpp) trains together; whenever the layout
// changes, or one of its trainers fails, a generation ends and the next begins at the newest step
// of which every shard has a copy:
//
//   after a failure   fence (it ends at once) -> idle -> plan -> join
//   for a wish        leave (it ends after a step; nothing is lost) -> idle -> plan -> join
//
// Cheapest first: the same trainers again (restarted processes), a spare in place of a lost node,
// cells put together from what is left, fewer groups, waiting for a node, stopping.
//
//   JOB-1 A committed step is never undone while one copy of every shard survives anywhere.
//   JOB-3 A generation begins with copies of one history: a step that was undone and made again in a
//      later generation may have come out differently, so older copies of it are not used, even if
//      one of every shard turns up.
//   GEN-1 What carries another generation than the current one has no effect.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/supervisor/decision/layout.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/held_step.hpp"

namespace simplescale::job {

enum class TrainerState : unsigned char {
  down,      // no process, or not heard of yet
  idle,      // up, in no generation
  training,  // told to join the current generation
  draining,  // told to leave it, has not answered yet
  finished,  // has trained its last step
};

/// Replicas made different states of `step` in this generation.
struct SuspectStep {
  uint64_t step = 0, generation = 0;
};
constexpr size_t suspect_steps_kept = 16;

/// Since this generation began, what older ones had made of `step` and all after it is undone.
struct Undoing {
  uint64_t generation = 0, step = 0;
};
constexpr size_t undoings_kept = 64;

struct Trainer {
  TrainerState state = TrainerState::down;
  int32_t pid = 0;
  std::vector<uint8_t> address;  // of its data plane
  uint32_t shard = 0;            // of which it holds
  std::vector<HeldStep> held;    // steps whose state it has in memory
  uint64_t step = 0;             // last reported
  uint64_t generation = 0;       // newest it was told to join, or said it is in
  bool ready = false;            // has the state of the current generation's first step
  bool unreadable = false;       // was that generation's checkpoint to it: an I/O error
};

enum class NodeState : unsigned char {
  absent,   // not heard of yet
  up,       // its agent reports
  suspect,  // up, but kept out until a diagnosis finds nothing
  drained,  // up, but kept out: by its budget, a diagnosis, or somebody's wish
  lost,     // was up
};
const char* to_string(NodeState state);

struct Node {
  NodeState state = NodeState::absent;
  int32_t pid = 0;                   // of its agent
  std::string reason;                // of the state
  int64_t since_ms = 0;              // when the state began
  std::vector<int64_t> failures_ms;  // of its trainers and its own; forgotten after
                                     // budget_steps committed steps without another
  uint64_t failed_at_step = 0;       // the newest of them
  bool checking = false;             // a diagnosis runs
  std::vector<PeerCopy> peer;        // copies of others' shards in its memory
};

enum class Phase : unsigned char { starting, training, recovering, stopping, finished, failed };
const char* to_string(Phase phase);

/// Where a generation's state comes from.
enum class Source : unsigned char { initialize, checkpoint, memory };
const char* to_string(Source source);

struct State {
  // Facts of the run.
  LayoutRules rules;
  uint64_t max_steps = 0;
  int64_t join_timeout_ms = 120'000;    // for the nodes of the start, or for one to come back
  int64_t restart_timeout_ms = 10'000;  // for a node to bring its trainers up again
  int64_t fence_timeout_ms = 2'000;     // for a trainer to leave a generation
  int64_t save_timeout_ms = 600'000;
  int64_t check_timeout_ms = 60'000;  // for a diagnosis
  int give_up_after_cycles = 5;
  int max_restarts = 5;  // failures of a node within within_ms, more than which drain it
  int64_t within_ms = 600'000;
  uint64_t budget_steps = 50;
  // What changes.
  Phase phase = Phase::starting;
  uint64_t generation = 0;              // the newest one given out
  std::vector<std::string> node_order;  // who is taken first
  std::map<std::string, Node> nodes;
  std::map<std::string, Trainer> trainers;  // "<node>.<slot>"
  Layout layout;                            // of the current generation; empty: none yet
  bool leaving = false;                     // the current generation was asked to end
  bool paused = false;                      // stay idle until resumed
  std::vector<std::string> to_examine;      // nodes, as soon as everybody is idle
  std::vector<std::string> examined;        // nodes, now: everybody waits for their diagnosis
  bool has_checkpoint = false;
  uint64_t checkpoint_step = 0;    // newest valid one on disk
  uint64_t failed_checkpoint = 0;  // the last one that could not be saved, if there is a reason
  std::string failed_checkpoint_reason;
  std::vector<uint64_t> older_checkpoints;  // the newest last; pruning may have taken them
  std::vector<SuspectStep> suspect_steps;   // the newest last
  std::vector<Undoing> undoings;            // of growing generation and step
  uint64_t committed_step = 0;
  uint64_t joined_step = 0;      // where the current generation began
  int cycles = 0;                // generations in a row without a committed step
  int64_t waiting_since_ms = 0;  // for trainers to come, to join or to finish
  std::string waiting_for;       // why a wait began; shown when it is given up
  bool incident = false;         // between a failure and the first step after it
  // A wish to stop.
  bool stop_requested = false;
  Code exit = Code::ok;
  std::string exit_reason;
};

// --- Events ---
/// pid: of its agent; the same one again only presents itself to a supervisor that took over.
struct NodeUp {
  std::string node;
  int32_t pid = 0;
};
struct NodeLost {
  std::string node, reason;
};
/// generation: the one it trains in, as told to a supervisor that took over; 0: none.
struct TrainerUp {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> address;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  uint64_t generation = 0;
};
struct TrainerDown {
  std::string trainer, reason;
  bool restarting = true;
};
/// Why a trainer left a generation.
enum class Fault : unsigned char {
  none,            // told to
  failed,          // a collective, a peer, a timeout
  non_finite,      // loss or norm
  mismatch,        // replicas differ in the state of `step`
  bad_copy,        // what `suspect` held is damaged
  bad_checkpoint,  // the checkpoint of `step` is damaged, or is not there any more
  bad_disk,        // it cannot be read, and may be as good as ever
};
/// A trainer left generation `generation` and waits.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation = 0;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  Fault fault = Fault::none;
  uint64_t step = 0;
  std::string suspect;
  std::string reason;
};
/// A trainer has the state its generation begins with.
struct TrainerReady {
  std::string trainer;
  uint64_t generation = 0;
};
struct PeerCopies {
  std::string node;
  std::vector<PeerCopy> copies;
};
struct StepCommitted {
  uint64_t generation = 0, step = 0;
};  // every trainer has reported it
struct TrainerFinished {
  std::string trainer;
  uint64_t generation = 0, step = 0;
};
struct CheckpointSaved {
  uint64_t step = 0;
};
struct CheckpointFailed {
  uint64_t step = 0;
  std::string reason;
  uint64_t generation = 0;  // that was to be saved
};
/// A node's trainer alone makes no progress (stuck), or others found it to be wrong.
struct Suspected {
  std::string trainer, reason;
};
/// A diagnosis has ended.
struct NodeChecked {
  std::string node;
  bool ok = false;
  std::string reason;
};
struct StopRequested {
  Code exit = Code::ok;
  std::string reason;
  bool now = false;
};  // now: without a save
/// Somebody's wishes; a node or trainer that does not exist is refused in Decision::reason.
struct PauseRequested {
  bool pause = true;
  std::string who;
};
struct DrainRequested {
  std::string node;
  bool drain = true;
  std::string reason;
};
/// These nodes are to be examined between two steps, while nobody trains.
struct DiagnoseRequested {
  std::vector<std::string> nodes;
  std::string who;
};
/// One of settings() is to change while the run goes on.
struct SetRequested {
  std::string key;
  int64_t value = 0;
  std::string who;
};
struct Tick {};  // time has passed
using Event = std::variant<NodeUp, NodeLost, TrainerUp, TrainerDown, TrainerIdle, TrainerReady,
                           PeerCopies, StepCommitted, TrainerFinished, CheckpointSaved,
                           CheckpointFailed, Suspected, NodeChecked, StopRequested, PauseRequested,
                           DrainRequested, DiagnoseRequested, SetRequested, Tick>;

// --- Actions ---
struct Fence {
  uint64_t generation = 0;
  std::string reason;
};  // everybody leaves what is older than this
struct Leave {
  uint64_t generation = 0;
  std::string reason;
};  // everybody leaves this one after a step
struct Join {
  uint64_t generation = 0;
  Source source = Source::initialize;
  uint64_t step = 0;
  std::vector<Move> moves;  // of state.layout
};
struct KillTrainer {
  std::string trainer, reason;
};
struct CheckNode {
  std::string node, reason;
};
struct StopAtStep {
  std::string reason;
};  // all trainers agree on the last step, save it, finish
struct Shutdown {
  Code exit = Code::ok;
  std::string reason;
};
/// For events.jsonl: phase of an incident ("detect", "fence", "abort", "decide", "heal", "resume"),
/// or "" for ordinary life.
struct Record {
  std::string phase, kind, subject, reason;
};
using Action =
    std::variant<Fence, Leave, Join, KillTrainer, CheckNode, StopAtStep, Shutdown, Record>;

struct Decision {
  std::vector<Action> actions;
  std::string reason;  // one line; empty if nothing was decided
};

/// Whether what was made of `step` in `generation` is one of the states that differed.
bool is_suspect(const State& state, uint64_t step, uint64_t generation);
/// Whether it is of the past that a newer generation has undone (JOB-3).
bool undone(const State& state, uint64_t step, uint64_t generation);
/// Neither: a generation may begin with a copy of it.
bool trusted(const State& state, uint64_t step, uint64_t generation);
/// The newest generation that trainers were told to join; faults of one before it have been dealt
/// with.
uint64_t newest_joined(const State& state);
/// The records of a run end with `step`, made in `generation`: what of it is still committed. Steps
/// that were undone stay in the records until they are made again.
uint64_t committed_of(const State& state, uint64_t step, uint64_t generation);

/// Changes `state` and tells what to do, in order. now_ms: any monotonic clock.
Decision decide(int64_t now_ms, State& state, const Event& event);

/// Whether somebody's diagnosis has begun, or is about to.
bool diagnosing(const State& state);

/// Keys of the configuration that SetRequested knows, with their values now.
std::vector<std::pair<std::string, int64_t>> settings(const State& state);

/// A job before anything was heard of. nodes: all that may come, spares included.
State make_state(const LayoutRules& rules, const std::vector<std::string>& nodes);

}  // namespace simplescale::job
