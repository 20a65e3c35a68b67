// The decisions of a supervisor with the semantics of Erlang/OTP's `supervisor`, as a pure
// function: decide(now, state, event) -> (state, actions, reason). No clock, no I/O, no CAF; any
// thread. supervisor_actor.hpp carries the decisions out; the tests call the same function.
//
// A supervisor does one operation at a time: start all children, restart a set of them, stop one,
// and so on. Events that arrive meanwhile wait in a backlog, as messages wait in the mailbox of an
// OTP supervisor.
//
//   V1  At most one instance of a child lives at any time.
//   V2  A child is started only after the one before it in the operation has started.
//   V3  Children stop one at a time in reverse start order; one that misses its deadline is killed.
//   V4  More than max_restarts in a sliding window end the supervisor. A failed restart counts.
//   V5  Every request is answered exactly once.
//   V6  The supervisor terminates only when no child lives.
//
// Differences from OTP:
//   * A request to stop does not wait for a start in progress. OTP blocks in the start function.
//   * A start may have a deadline.
//   * A restart may be delayed (back-off; zero by default). The children that have to stop stop at
//     once; only the starts wait.
//   * Restarts are counted per child id. The counts can outlive the supervisor and are reset by
//     progress, which OTP does not know.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "actors/otp/budget.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::supervision {

enum class Strategy : uint8_t {
  one_for_one,    // restart the child that died
  one_for_all,    // stop all others in reverse order, then start all in order
  rest_for_one,   // the same with the children that come after it in start order
  group_for_all,  // not in OTP: the same with the children of its group; no group: only that child
};
/// When a child that died is restarted: always, after an abnormal exit, never.
enum class Restart : uint8_t { permanent, transient, temporary };
enum class ExitKind : uint8_t { normal, shutdown, abnormal };
enum class AutoShutdown : uint8_t { never, any_significant, all_significant };
enum class Phase : uint8_t { stopped, restarting, starting, running, stopping };

inline constexpr int64_t kForever = std::numeric_limits<int64_t>::max();  // OTP's `infinity`
inline constexpr int64_t kBrutalKill = -1;  // as shutdown_ms: kill without asking

struct ChildSpec {
  std::string id;  // unique in its supervisor, the same in every life: "n1.0"
  Restart restart = Restart::permanent;
  int64_t shutdown_ms = 5000;    // from exit request to kill, or kBrutalKill, or kForever
  std::string group;             // for group_for_all only
  bool is_supervisor = false;    // for counts only; a supervisor should have kForever to stop
  bool significant = false;      // see AutoShutdown; not allowed for permanent children
  bool reports_started = false;  // else it has started when its start function returns
  int64_t start_timeout_ms = kForever;  // a child that has not started by then is killed
  uint64_t tag = 0;                     // for the caller; decisions ignore it
  bool operator==(const ChildSpec&) const = default;
};

struct SupervisorSpec {
  Strategy strategy = Strategy::one_for_one;
  Intensity intensity;
  BackOff back_off;
  AutoShutdown auto_shutdown = AutoShutdown::never;
  bool operator==(const SupervisorSpec&) const = default;
};

enum class Answer : uint8_t {
  ok,
  already_started,
  already_present,
  not_found,
  running,
  restarting,
  start_failed,
  stopping,
  bad_spec
};

// `instance` numbers the lives of all children of a supervisor, from 1. An event about a past life
// is ignored.
namespace event {
/// Start all children.
struct Begin {
  bool operator==(const Begin&) const = default;
};
struct Started {
  std::string id;
  uint64_t instance;
  bool operator==(const Started&) const = default;
};
/// The start function chose not to start anything (OTP's `ignore`).
struct Ignored {
  std::string id;
  uint64_t instance;
  bool operator==(const Ignored&) const = default;
};
struct StartFailed {
  std::string id;
  uint64_t instance;
  std::string why;
  bool operator==(const StartFailed&) const = default;
};
struct Exited {
  std::string id;
  uint64_t instance;
  ExitKind kind;
  std::string why;
  bool operator==(const Exited&) const = default;
};
struct Stop {
  std::string why;
  bool operator==(const Stop&) const = default;
};
struct StartChild {
  uint64_t request;
  ChildSpec spec;
  bool operator==(const StartChild&) const = default;
};
struct TerminateChild {
  uint64_t request;
  std::string id;
  bool operator==(const TerminateChild&) const = default;
};
struct RestartChild {
  uint64_t request;
  std::string id;
  bool operator==(const RestartChild&) const = default;
};
struct DeleteChild {
  uint64_t request;
  std::string id;
  bool operator==(const DeleteChild&) const = default;
};
struct Timer {
  uint64_t token;
  bool operator==(const Timer&) const = default;
};
/// The children made progress (a committed step): forget the restarts of these, of all if empty.
struct Progress {
  std::vector<std::string> ids;
  bool operator==(const Progress&) const = default;
};
/// Internal: try again after a restart that failed.
struct Retry {
  std::string id;
  bool operator==(const Retry&) const = default;
};
}  // namespace event

using Event =
    std::variant<event::Begin, event::Started, event::Ignored, event::StartFailed, event::Exited,
                 event::Stop, event::StartChild, event::TerminateChild, event::RestartChild,
                 event::DeleteChild, event::Timer, event::Progress, event::Retry>;

enum class ReportKind : uint8_t {
  started,
  start_failed,
  exited,
  restarting,
  stopping,
  stopped,
  killed,
  shutdown_error,
  escalated,
  auto_shutdown,
  ready,
  terminated
};

// The caller carries them out in their order.
namespace action {
/// Start the child; answered by Started, Ignored, StartFailed or Exited.
struct Start {
  std::string id;
  uint64_t instance;
};
/// Ask the child to exit with reason `shutdown`; answered by Exited.
struct Stop {
  std::string id;
  uint64_t instance;
};
struct Kill {
  std::string id;
  uint64_t instance;
};
/// Start a timer; answered by Timer after the delay. Timers are never cancelled; stale ones are
/// ignored.
struct Arm {
  uint64_t token;
  int64_t delay_ms;
};
struct Reply {
  uint64_t request;
  Answer answer;
  std::string id;
  std::string why;
};
/// All children have started: report it to the parent of the supervisor.
struct Ready {};
/// No child lives: end with the reason of the request to stop if `requested`, else with `shutdown`.
struct Terminate {
  bool requested;
  std::string why;
};
struct Report {
  ReportKind kind;
  std::string id;
  uint64_t instance;
  std::string why;
};
}  // namespace action

using Action = std::variant<action::Start, action::Stop, action::Kill, action::Arm, action::Reply,
                            action::Ready, action::Terminate, action::Report>;

struct ChildState {
  ChildSpec spec;
  Phase phase = Phase::stopped;
  uint64_t instance = 0;
  bool down = false;          // has exited; the event waits in the backlog
  bool start_killed = false;  // was killed because its start timed out
  uint64_t timer = 0;         // token of the timer for the kill or for the delayed start; 0: none
  int64_t not_before_ms = 0;  // restarting: when its back-off ends
  bool operator==(const ChildState&) const = default;
};

struct Operation {
  enum class Kind : uint8_t {
    none,
    init,
    restart,
    start_child,
    restart_child,
    terminate_child,
    shutdown
  };
  Kind kind = Kind::none;
  std::deque<std::string> to_stop;   // in the order of stopping
  std::deque<std::string> to_start;  // in start order, after all of to_stop have stopped
  std::string current;               // the child that is starting or stopping now
  std::string subject;               // the child that the operation is about
  uint64_t request = 0;              // the request to answer at the end; 0: none
  int64_t due_ms = 0;                // no child starts before
  bool requested = false;            // shutdown: by event::Stop
  std::string why;
  bool operator==(const Operation&) const = default;
};

struct SupervisorState {
  SupervisorSpec spec;
  std::vector<ChildState> children;  // in start order
  Budgets budgets;  // outlive the supervisor if they are given to the next make_state()
  Operation operation;
  std::deque<Event> backlog;
  uint64_t instances = 0;  // the newest number of a life
  uint64_t timers = 0;     // the newest token of a timer
  uint64_t draws = 0;      // random numbers used for jitter
  bool terminated = false;
  bool operator==(const SupervisorState&) const = default;
};

struct Decision {
  SupervisorState state;
  std::vector<Action> actions;
  std::string reason;  // for users: what was decided and why
};

/// bad_config for an empty or repeated id, a negative time, or a significant child that OTP
/// refuses.
Status validate(const SupervisorSpec& spec, const std::vector<ChildSpec>& children);
/// The state before event::Begin. The specs must be valid (asserted).
SupervisorState make_state(SupervisorSpec spec, const std::vector<ChildSpec>& children,
                           Budgets budgets = {});
/// now_ms: any monotonic clock, the same one for all calls. Never fails: an event that does not fit
/// the state is ignored, with the reason "nothing to do".
Decision decide(int64_t now_ms, SupervisorState state, const Event& event);

struct ChildInfo {
  std::string id;
  Phase phase;
  uint64_t instance;
  bool is_supervisor;
};
struct ChildCounts {
  size_t specs = 0, active = 0, supervisors = 0, workers = 0;
  bool operator==(const ChildCounts&) const = default;
};
/// In start order.
std::vector<ChildInfo> which_children(const SupervisorState& state);
ChildCounts count_children(const SupervisorState& state);

const char* to_string(Strategy value);
const char* to_string(Restart value);
const char* to_string(ExitKind value);
const char* to_string(Phase value);
const char* to_string(Answer value);
const char* to_string(ReportKind value);

}  // namespace simplescale::supervision
