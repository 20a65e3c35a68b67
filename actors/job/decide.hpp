// What the supervisor decides, as a pure function: decide(now, state, event) -> actions and the
// reason for them.
//
// Plain data in and out: no clock, no I/O, no actors. The same function serves the supervisor
// actor, tests and simulation. A job is a sequence of generations; in one of them a fixed set of
// trainers trains together. Whenever the set changes, or one of them fails, the generation is
// fenced: everybody aborts it, reports which steps it still holds, and a new one begins at the
// newest step that all of them hold.
//
//   S1 A committed step is never undone while every trainer still holds it in memory.
//   S4 What carries another generation than the current one has no effect.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::job {

enum class TrainerState : unsigned char {
  down,      // no process, or not heard of yet
  idle,      // up, in no generation
  training,  // told to join the current generation
  draining,  // told to leave it, has not answered yet
  finished,  // has trained its last step
};

struct Trainer {
  TrainerState state = TrainerState::down;
  int32_t pid = 0;
  std::vector<uint8_t> address;  // of its data plane
  std::vector<uint64_t> held;    // steps whose state it has in memory
  uint64_t step = 0;             // last reported
};

enum class Phase : unsigned char { starting, training, recovering, stopping, finished, failed };
const char* to_string(Phase phase);

/// Where a generation's state comes from.
enum class Source : unsigned char { initialize, checkpoint, memory };
const char* to_string(Source source);

struct State {
  // Facts of the run.
  std::vector<std::string> trainer_names;  // in rank order
  std::vector<std::string> node_names;
  uint64_t max_steps = 0;
  int64_t join_timeout_ms = 120'000, save_timeout_ms = 600'000;
  int give_up_after_cycles = 5;
  // What changes.
  Phase phase = Phase::starting;
  uint64_t generation = 0;  // the newest one given out
  std::map<std::string, Trainer> trainers;
  std::map<std::string, bool> nodes;        // up?
  std::optional<uint64_t> checkpoint_step;  // newest valid one on disk
  uint64_t committed_step = 0;
  uint64_t joined_step = 0;      // where the current generation began
  int cycles = 0;                // generations in a row without a committed step
  int64_t waiting_since_ms = 0;  // for trainers to come, to join or to finish
  std::string waiting_for;       // why a wait began; shown when it is given up
  // A wish to stop.
  bool stop_requested = false;
  Code exit = Code::ok;
  std::string exit_reason;
};

// --- Events ---
struct NodeUp {
  std::string node;
};
struct NodeLost {
  std::string node, reason;
};
struct TrainerUp {
  std::string trainer;
  int32_t pid;
  std::vector<uint8_t> address;
  std::vector<uint64_t> held;
};
struct TrainerDown {
  std::string trainer, reason;
  bool restarting;
};
/// A trainer left generation `generation` (told to, or by a failure of its own) and waits.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation;
  std::vector<uint64_t> held;
  std::string reason;
};
struct StepCommitted {
  uint64_t generation, step;
};  // every trainer has reported it
struct TrainerFinished {
  std::string trainer;
  uint64_t generation, step;
};
struct CheckpointSaved {
  uint64_t step;
};
struct CheckpointFailed {
  uint64_t step;
  std::string reason;
};
struct StopRequested {
  Code exit;
  std::string reason;
  bool now;
};               // now: without a save
struct Tick {};  // time has passed
using Event = std::variant<NodeUp, NodeLost, TrainerUp, TrainerDown, TrainerIdle, StepCommitted,
                           TrainerFinished, CheckpointSaved, CheckpointFailed, StopRequested, Tick>;

// --- Actions ---
struct Fence {
  uint64_t generation;
  std::string reason;
};  // everybody leaves what is older than this
struct Join {
  uint64_t generation;
  Source source;
  uint64_t step;
};
struct StopAtStep {
  std::string reason;
};  // all trainers agree on the last step, save it, finish
struct Shutdown {
  Code exit;
  std::string reason;
};
/// For events.jsonl: phase of an incident ("detect", "fence", "decide", "resume"), or "" for
/// ordinary life.
struct Record {
  std::string phase, kind, subject, reason;
};
using Action = std::variant<Fence, Join, StopAtStep, Shutdown, Record>;

struct Decision {
  std::vector<Action> actions;
  std::string reason;  // one line; empty if nothing was decided
};

/// Changes `state` and tells what to do, in order. now_ms: any monotonic clock.
Decision decide(int64_t now_ms, State& state, const Event& event);

/// The newest step that every trainer holds in memory.
std::optional<uint64_t> newest_common_step(const State& state);

}  // namespace simplescale::job
