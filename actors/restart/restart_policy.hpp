// Decides when the children of a supervisor start, start again and stop. A pure function:
// react(now, tree, event) -> (tree, actions). No clock, no I/O, no CAF; any thread.
// child_supervisor.hpp carries the actions out; the tests call the same function.
//
// A child that ends is restarted alone, after a delay that grows until the child makes progress.
// These are Erlang/OTP's `one_for_one`, `permanent` and `transient`. OTP knows neither delays nor
// progress, and counts the restarts of all children together.
//
//   V1  At most one instance of a child lives at any time.
//   V2  The children start in their order, each after the one before it. If one cannot, all stop.
//   V3  The children stop one at a time, the last first. One that misses its deadline is killed.
//   V4  All stop if one child needs more than max_restarts in a sliding window. A restart that
//       fails counts.
//   V5  The supervisor ends only when no child lives.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

namespace simplescale::restart {

inline constexpr int64_t kStop_ms = 5000;  // from the request to stop to the kill

/// When a child that ended is restarted: always, or only after an abnormal exit.
enum class Restart : uint8_t { permanent, transient };
enum class ExitKind : uint8_t { normal, shutdown, abnormal };

struct ChildSpec {
  std::string id;  // in reports: "n1/p0"
  Restart restart = Restart::permanent;
};

struct RestartLimits {
  uint32_t max_restarts = 1;   // of each child within within_ms
  int64_t within_ms = 5000;    // a restart exactly this long ago still counts
  int64_t first_delay_ms = 0;  // doubles with each restart since the last progress; 0: no delay
  int64_t max_delay_ms = 30000;
};

/// The delay before restart number `attempts` (from 1) since the last progress, shortened by a
/// random part of at most half. draw: selects the random number; the same arguments give the same
/// delay.
int64_t restart_delay_ms(const RestartLimits& limits, uint32_t attempts, uint64_t draw);

// child: its index in TreeState::children.
namespace event {
/// Start all children. The first event, once.
struct Begin {};
struct Started {
  size_t child;
};
struct StartFailed {
  size_t child;
  std::string why;
};
/// Of a child that has started.
struct Exited {
  size_t child;
  ExitKind kind;
  std::string why;
};
struct TimerFired {
  size_t child;
};
/// The child did what it is for: forget its restarts.
struct Progress {
  size_t child;
};
struct Stop {
  std::string why;
};
}  // namespace event

using Event = std::variant<event::Begin, event::Started, event::StartFailed, event::Exited,
                           event::TimerFired, event::Progress, event::Stop>;

// The caller carries them out in their order.
namespace action {
/// Answered by Started or StartFailed, before any other event. The last action of its reaction.
struct Start {
  size_t child;
};
/// Ask the child to exit with reason `shutdown`; answered by Exited.
struct Stop {
  size_t child;
};
/// Answered by Exited.
struct Kill {
  size_t child;
};
/// Answered by TimerFired after the delay. Timers are never cancelled. A stale one finds its child
/// neither waiting nor stopping, and is ignored.
struct Arm {
  size_t child;
  int64_t delay_ms;
};
/// No child lives: end, with the reason of the request to stop if `requested`, else with
/// `shutdown`.
struct Terminate {
  bool requested;
};
/// For the log.
struct Report {
  bool warning;
  std::string text;
};
}  // namespace action

using Action = std::variant<action::Start, action::Stop, action::Kill, action::Arm,
                            action::Terminate, action::Report>;

enum class ChildPhase : uint8_t {
  stopped,   // does not live
  waiting,   // does not live; is restarted when its delay is over
  starting,  // Start has not been answered
  running,
  stopping,  // was asked to exit
  killed,    // has not exited yet
  ended      // ended by itself while others stop; its turn to stop has not come
};

struct ChildState {
  ChildSpec spec;
  ChildPhase phase = ChildPhase::stopped;
  std::deque<int64_t> restarts_ms = {};  // in the window and since the last progress, oldest first
  uint32_t attempts = 0;                 // restarts since the last progress
};

struct TreeState {
  enum class Stage : uint8_t { starting, running, stopping, terminated };
  RestartLimits limits;
  std::vector<ChildState> children;  // in start order
  Stage stage = Stage::starting;
  uint64_t draws = 0;           // random numbers used for delays
  bool stop_requested = false;  // stopping: by event::Stop
  std::string stop_why = {};
};

struct Reaction {
  TreeState tree;
  std::vector<Action> actions;
};

/// The tree before event::Begin.
TreeState make_tree(const RestartLimits& limits, const std::vector<ChildSpec>& children);
/// now_ms: any monotonic clock, the same one for all calls.
Reaction react(int64_t now_ms, TreeState tree, const Event& event);

const char* to_string(ExitKind value);

}  // namespace simplescale::restart
