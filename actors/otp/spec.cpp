// Validation, views and names of the data in decide.hpp.
#include <fmt/format.h>

#include <set>

#include "actors/otp/decide.hpp"

namespace simplescale::supervision {

Status validate(const SupervisorSpec& spec, const std::vector<ChildSpec>& children) {
  const auto bad = [](const std::string& what) {
    return Status(Code::bad_config, "supervisor: " + what);
  };
  constexpr int64_t kLongest_ms = int64_t{1} << 52;
  if (spec.intensity.within_ms <= 0) return bad("within_ms must be positive");
  const BackOff& back_off = spec.back_off;
  if (back_off.first_ms < 0 || back_off.max_ms < 0 || back_off.max_ms > kLongest_ms)
    return bad("the back-off's times must not be negative or endless");
  if (!(back_off.factor >= 1.0)) return bad("the back-off's factor must be at least 1");
  if (!(back_off.jitter >= 0.0 && back_off.jitter <= 1.0)) return bad("jitter must be from 0 to 1");
  std::set<std::string> seen;
  for (const auto& child : children) {
    if (child.id.empty()) return bad("a child needs an id");
    if (!seen.insert(child.id).second)
      return bad(fmt::format("two children are called {}", child.id));
    if (child.shutdown_ms < 0 && child.shutdown_ms != kBrutalKill)
      return bad(fmt::format("{}: shutdown_ms must not be negative", child.id));
    if (child.start_timeout_ms <= 0)
      return bad(fmt::format("{}: start_timeout_ms must be positive", child.id));
    if (child.significant && child.restart == Restart::permanent)
      return bad(fmt::format("{}: a permanent child cannot be significant", child.id));
    if (child.significant && spec.auto_shutdown == AutoShutdown::never)
      return bad(fmt::format("{}: significant children need auto_shutdown", child.id));
  }
  return {};
}

std::vector<ChildInfo> which_children(const SupervisorState& state) {
  std::vector<ChildInfo> infos;
  for (const auto& child : state.children)
    infos.push_back({child.spec.id, child.phase, child.instance, child.spec.is_supervisor});
  return infos;
}

ChildCounts count_children(const SupervisorState& state) {
  ChildCounts counts;
  for (const auto& child : state.children) {
    ++counts.specs;
    ++(child.spec.is_supervisor ? counts.supervisors : counts.workers);
    const bool waits = child.phase == Phase::stopped || child.phase == Phase::restarting;
    if (!waits && !child.down) ++counts.active;
  }
  return counts;
}

const char* to_string(Strategy value) {
  switch (value) {
    case Strategy::one_for_one:
      return "one_for_one";
    case Strategy::one_for_all:
      return "one_for_all";
    case Strategy::rest_for_one:
      return "rest_for_one";
    case Strategy::group_for_all:
      return "group_for_all";
  }
  return "?";
}

const char* to_string(Restart value) {
  switch (value) {
    case Restart::permanent:
      return "permanent";
    case Restart::transient:
      return "transient";
    case Restart::temporary:
      return "temporary";
  }
  return "?";
}

const char* to_string(ExitKind value) {
  switch (value) {
    case ExitKind::normal:
      return "normal";
    case ExitKind::shutdown:
      return "shutdown";
    case ExitKind::abnormal:
      return "abnormal";
  }
  return "?";
}

const char* to_string(Phase value) {
  switch (value) {
    case Phase::stopped:
      return "stopped";
    case Phase::restarting:
      return "restarting";
    case Phase::starting:
      return "starting";
    case Phase::running:
      return "running";
    case Phase::stopping:
      return "stopping";
  }
  return "?";
}

const char* to_string(Answer value) {
  switch (value) {
    case Answer::ok:
      return "ok";
    case Answer::already_started:
      return "already_started";
    case Answer::already_present:
      return "already_present";
    case Answer::not_found:
      return "not_found";
    case Answer::running:
      return "running";
    case Answer::restarting:
      return "restarting";
    case Answer::start_failed:
      return "start_failed";
    case Answer::stopping:
      return "stopping";
    case Answer::bad_spec:
      return "bad_spec";
  }
  return "?";
}

const char* to_string(ReportKind value) {
  switch (value) {
    case ReportKind::started:
      return "started";
    case ReportKind::start_failed:
      return "start_failed";
    case ReportKind::exited:
      return "exited";
    case ReportKind::restarting:
      return "restarting";
    case ReportKind::stopping:
      return "stopping";
    case ReportKind::stopped:
      return "stopped";
    case ReportKind::killed:
      return "killed";
    case ReportKind::shutdown_error:
      return "shutdown_error";
    case ReportKind::escalated:
      return "escalated";
    case ReportKind::auto_shutdown:
      return "auto_shutdown";
    case ReportKind::ready:
      return "ready";
    case ReportKind::terminated:
      return "terminated";
  }
  return "?";
}

}  // namespace simplescale::supervision
