#include "actors/node/liveness.hpp"

namespace simplescale {
namespace {

constexpr size_t kRecentSteps = 16;
constexpr int64_t kStarved = 3, kStarvedWarm = 10;  // times silence_ms
constexpr double kSlowSteps = 20;

}  // namespace

void LivenessMonitor::add(int64_t now_ms, const std::string& process, pid_t pid) {
  const auto before = monitored_.find(process);
  Monitored added;
  if (before != monitored_.end()) added.in_slot = before->second.in_slot;
  added.pid = pid;
  added.heard_ms = added.progress_ms = added.unit_ms = now_ms;
  monitored_[process] = added;
}

void LivenessMonitor::set_in_slot(const std::string& process) {
  monitored_[process].in_slot = true;
}

void LivenessMonitor::add_progress(int64_t now_ms, const std::string& process,
                                   const TrainerProgress& progress) {
  const auto found = monitored_.find(process);
  if (found == monitored_.end()) return;
  Monitored& p = found->second;
  p.heard_ms = now_ms;
  if (progress.units != p.last.units || progress.generation != p.last.generation ||
      progress.step != p.last.step)
    p.unit_ms = p.progress_ms = now_ms;
  if (progress.generation == 0 || progress.waiting) p.progress_ms = now_ms;
  p.last = progress;
}

void LivenessMonitor::add_step(const std::string& process, double step_ms) {
  const auto found = monitored_.find(process);
  if (found == monitored_.end()) return;
  found->second.steps_ms.push_back(step_ms);
  if (found->second.steps_ms.size() > kRecentSteps) found->second.steps_ms.pop_front();
}

std::vector<TrainerProgress> LivenessMonitor::progress(int64_t now_ms, uint64_t generation) const {
  std::vector<TrainerProgress> list;
  for (const auto& [id, p] : monitored_) {
    if (p.last.generation != generation) continue;
    TrainerProgress& progress = list.emplace_back(p.last);
    progress.trainer = id;
    progress.still_ms = now_ms - p.unit_ms;
    progress.stuck_ms = now_ms - p.progress_ms;
    progress.silent_ms = now_ms - p.heard_ms;
  }
  return list;
}

std::vector<LivenessMonitor::Verdict> LivenessMonitor::check(
    int64_t now_ms, const std::function<ProcessState(pid_t)>& state) {
  const int64_t late =
      checked_ms_ < 0 ? 0 : std::max<int64_t>(0, now_ms - checked_ms_ - options_.heartbeat_ms);
  checked_ms_ = now_ms;
  std::vector<Verdict> verdicts;
  for (auto& [id, process] : monitored_) {
    process.heard_ms = std::min(now_ms, process.heard_ms + late);
    process.progress_ms = std::min(now_ms, process.progress_ms + late);
    process.unit_ms = std::min(now_ms, process.unit_ms + late);
    if (process.condemned || process.pid == 0) continue;
    std::optional<Reason> reason = reason_to_kill(now_ms, process, state);
    if (!reason) continue;
    process.condemned = true;
    verdicts.push_back({id, std::move(*reason)});
  }
  return verdicts;
}

std::optional<Reason> LivenessMonitor::reason_to_kill(
    int64_t now_ms, const Monitored& p, const std::function<ProcessState(pid_t)>& state) const {
  const int64_t silent = now_ms - p.heard_ms;
  if (silent > options_.silence_ms) {
    if (state(p.pid) == ProcessState::stopped)
      return reason_of({.kind = ReasonKind::stopped, .ms = silent});
    if (silent > (p.in_slot ? kStarved : kStarvedWarm) * options_.silence_ms)
      return reason_of({.kind = ReasonKind::silent, .ms = silent});
  }
  double limit = static_cast<double>(options_.progress_timeout_ms);
  for (const double step_ms : p.steps_ms) limit = std::max(limit, kSlowSteps * step_ms);
  const int64_t still = now_ms - p.progress_ms;
  if (p.last.generation != 0 && !p.last.waiting && static_cast<double>(still) > limit)
    return reason_of({.kind = ReasonKind::stuck, .ms = still, .step = p.last.step});
  return {};
}

}  // namespace simplescale
