#include "actors/node/watch.hpp"

namespace simplescale {
namespace {

constexpr size_t kRecentSteps = 16;
constexpr int64_t kStarved = 3, kStarvedIdle = 10;  // times silence_ms
constexpr double kSlowSteps = 20;

}  // namespace

void TrainerWatch::up(int64_t now_ms, const std::string& process, pid_t pid) {
  const auto before = watched_.find(process);
  Watched watched;
  if (before != watched_.end()) watched.needed = before->second.needed;
  watched.pid = pid;
  watched.heard_ms = watched.moved_ms = now_ms;
  watched_[process] = watched;
}

void TrainerWatch::needed(const std::string& process) {
  watched_[process].needed = true;
}

void TrainerWatch::heard(int64_t now_ms, const std::string& process,
                         const TrainerProgress& progress) {
  const auto found = watched_.find(process);
  if (found == watched_.end()) return;
  Watched& w = found->second;
  w.heard_ms = now_ms;
  if (progress.generation == 0 || progress.waiting || progress.units != w.last.units ||
      progress.generation != w.last.generation || progress.step != w.last.step)
    w.moved_ms = now_ms;
  w.last = progress;
}

void TrainerWatch::step_took(const std::string& process, double step_ms) {
  const auto found = watched_.find(process);
  if (found == watched_.end()) return;
  found->second.steps_ms.push_back(step_ms);
  if (found->second.steps_ms.size() > kRecentSteps) found->second.steps_ms.pop_front();
}

std::vector<TrainerWatch::Verdict> TrainerWatch::look(
    int64_t now_ms, const std::function<ProcessState(pid_t)>& state) {
  const int64_t late =
      looked_ms_ < 0 ? 0 : std::max<int64_t>(0, now_ms - looked_ms_ - options_.heartbeat_ms);
  looked_ms_ = now_ms;
  std::vector<Verdict> verdicts;
  for (auto& [process, watched] : watched_) {
    watched.heard_ms = std::min(now_ms, watched.heard_ms + late);
    watched.moved_ms = std::min(now_ms, watched.moved_ms + late);
    if (watched.accused || watched.pid == 0) continue;
    std::string reason = accuse(now_ms, watched, state);
    if (reason.empty()) continue;
    watched.accused = true;
    verdicts.push_back({process, std::move(reason)});
  }
  return verdicts;
}

std::string TrainerWatch::accuse(int64_t now_ms, const Watched& w,
                                 const std::function<ProcessState(pid_t)>& state) const {
  const int64_t silent = now_ms - w.heard_ms;
  if (silent > options_.silence_ms) {
    if (state(w.pid) == ProcessState::stopped)
      return "stopped, silent for " + std::to_string(silent) + " ms";
    if (silent > (w.needed ? kStarved : kStarvedIdle) * options_.silence_ms)
      return "silent for " + std::to_string(silent) + " ms";
  }
  double limit = static_cast<double>(options_.progress_timeout_ms);
  for (const double step_ms : w.steps_ms) limit = std::max(limit, kSlowSteps * step_ms);
  const int64_t still = now_ms - w.moved_ms;
  if (w.last.generation != 0 && !w.last.waiting && static_cast<double>(still) > limit)
    return "stuck at step " + std::to_string(w.last.step) + ": nothing computed for " +
           std::to_string(still) + " ms, and it does not wait for others";
  return "";
}

}  // namespace simplescale
