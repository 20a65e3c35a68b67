// The supervisor's brain: decide(now, state, event) -> (state, actions, reason), with the semantics
// of Erlang/OTP's `supervisor`. Pure: plain data in, plain data out; no clock, no I/O, no CAF, any
// thread. The same function runs in the real system (supervisor_actor.hpp), in simulations and in
// tests.
//
// The supervisor does one operation at a time (start all, restart a set of children, stop one,
// ...). What arrives meanwhile waits in a backlog, as messages wait in the mailbox of an OTP
// supervisor. Invariants, cited by the tests:
//   V1  at most one instance of a child lives at any time
//   V2  a child is started only when the one before it in the operation has reported started
//   V3  children stop one at a time, in reverse start order, each with a deadline and then a kill
//   V4  more than max_restarts in a sliding window end the supervisor; a failed restart counts too
//   V5  every request is answered exactly once
//   V6  the supervisor terminates only when no child lives
//
// On purpose different from OTP: a request to stop does not wait for a start in progress (OTP is
// blocked in the start function); a start may have a deadline; restarts may be delayed (back-off,
// zero by default), then the children to be stopped stop at once and the start waits; the restart
// history is kept per child id, can outlive the supervisor, and is forgotten on progress (OTP never
// hears of progress).
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
  group_for_all,  // ours: the same with the children of its group; no label: just that child
};
enum class Restart : uint8_t { permanent, transient, temporary };  // always, if abnormal, never
enum class ExitKind : uint8_t { normal, shutdown, abnormal };
enum class AutoShutdown : uint8_t { never, any_significant, all_significant };
enum class Phase : uint8_t { stopped, restarting, starting, running, stopping };

inline constexpr int64_t kForever = std::numeric_limits<int64_t>::max();  // OTP's `infinity`
inline constexpr int64_t kBrutalKill = -1;  // as shutdown_ms: kill without asking

struct ChildSpec {
  std::string id;  // stable identity, unique in its supervisor: "n1.0"
  Restart restart = Restart::permanent;
  int64_t shutdown_ms = 5000;    // from exit request to kill, or kBrutalKill, or kForever
  std::string group;             // group_for_all only
  bool is_supervisor = false;    // for counts only; give supervisors kForever to stop
  bool significant = false;      // see AutoShutdown; not allowed for permanent children
  bool reports_started = false;  // started when it says so, not when its start function returns
  int64_t start_timeout_ms = kForever;  // not started by then: killed, failed to start
  uint64_t tag = 0;                     // the caller's own: decisions do not look at it
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

// What happened. `instance` numbers the lives of children; an event about a past life is ignored.
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
/// Something worth keeping was achieved (a committed step): forgets the restarts of these children,
/// all if empty.
struct Progress {
  std::vector<std::string> ids;
  bool operator==(const Progress&) const = default;
};
/// Internal: another attempt after a restart that failed.
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

// What to do now, in this order.
namespace action {
/// Answer with Started, Ignored, StartFailed or Exited.
struct Start {
  std::string id;
  uint64_t instance;
};
/// Send an exit request with reason `shutdown`.
struct Stop {
  std::string id;
  uint64_t instance;
};
struct Kill {
  std::string id;
  uint64_t instance;
};
/// Answer with Timer after the delay. Timers are never cancelled; stale ones are ignored.
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
/// All children have started: tell who started the supervisor.
struct Ready {};
/// No child lives; end with reason `shutdown`, or with the reason of the request to stop.
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
  bool down = false;          // its exit is known but waits in the backlog
  bool start_killed = false;  // its start timed out
  uint64_t timer = 0;         // until the kill, or while restarting until the start
  int64_t not_before_ms = 0;  // restarting: the end of its back-off
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
  std::deque<std::string> to_start;  // in start order, after all of to_stop
  std::string current;               // the child that is starting or stopping now
  std::string subject;
  uint64_t request = 0;
  int64_t due_ms = 0;      // not to start before
  bool requested = false;  // shutdown: somebody asked for it
  std::string why;
  bool operator==(const Operation&) const = default;
};

struct SupervisorState {
  SupervisorSpec spec;
  std::vector<ChildState> children;  // in start order
  Budgets budgets;                   // survives the supervisor if given to the next make_state()
  Operation operation;
  std::deque<Event> backlog;
  uint64_t instances = 0;  // lives begun
  uint64_t timers = 0;     // tokens handed out
  uint64_t draws = 0;      // random numbers drawn for jitter
  bool terminated = false;
  bool operator==(const SupervisorState&) const = default;
};

struct Decision {
  SupervisorState state;
  std::vector<Action> actions;
  std::string reason;  // for people: what was decided and why
};

/// bad_config, with the reason, for an empty or repeated id, a negative time, or a significant
/// child that OTP refuses.
Status validate(const SupervisorSpec& spec, const std::vector<ChildSpec>& children);
/// The state before event::Begin. The specs must be valid (asserted).
SupervisorState make_state(SupervisorSpec spec, const std::vector<ChildSpec>& children,
                           Budgets budgets = {});
/// now_ms: any monotonic clock, the same one for all calls. Never fails; what makes no sense is
/// ignored and says so.
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
