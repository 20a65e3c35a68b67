#include "actors/supervisor/trace_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace simplescale {

namespace {
constexpr int64_t kUnknownNs = 1'000'000'000;  // assumed length of a step whose begin is unknown
constexpr int64_t kLongestBeforeNs = 10 * kUnknownNs;
}  // namespace

TracePlan::TracePlan(const std::vector<int64_t>& steps, bool recoveries) : recoveries_(recoveries) {
  for (const int64_t step : steps)
    if (step > 0) chosen_.insert(static_cast<uint64_t>(step));
}

void TracePlan::choose(uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) chosen_.insert(first + i);
}

void TracePlan::generation_begun(int64_t at_ns) {
  if (recovery_ || steps_) return;  // the open window has its begin already
  before_ns_ = 0;
  last_ns_ = at_ns;
}

void TracePlan::incident_begun(uint64_t generation, uint64_t incident, const std::string& node,
                               int64_t at_ns) {
  if (!recovery_) failed_.clear();
  failed_.insert(node);
  if (!recoveries_ || recovery_) return;
  const int64_t since = before_ns_ > 0 ? before_ns_ : last_ns_ > 0 ? last_ns_ : at_ns - kUnknownNs;
  recovery_ = {std::clamp(since, at_ns - kLongestBeforeNs, at_ns), generation, incident};
}

void TracePlan::incident_ended(uint64_t generation, uint64_t incident) {
  if (recovery_) recovery_ = {recovery_->begin_ns, generation, incident, true};
}

std::vector<TraceWindow> TracePlan::committed(uint64_t step, int64_t ended_ns, int64_t at_ns) {
  std::vector<TraceWindow> windows;
  if (chosen_.contains(step)) {
    if (!steps_) steps_ = {step, step, last_ns_ > 0 ? last_ns_ : at_ns - kUnknownNs};
    steps_->last = std::max(steps_->last, step);
    if (!chosen_.contains(step + 1)) end_steps(at_ns, windows);
  }
  if (recovery_ && recovery_->over) end_recovery(at_ns, windows);
  before_ns_ = last_ns_;
  last_ns_ = ended_ns;
  return windows;
}

std::vector<TraceWindow> TracePlan::end(int64_t at_ns) {
  std::vector<TraceWindow> windows;
  if (steps_) end_steps(at_ns, windows);
  if (recovery_) end_recovery(at_ns, windows);
  return windows;
}

std::vector<std::string> TracePlan::writers(const TraceWindow& window,
                                            const std::vector<std::string>& nodes) const {
  if (!window.name.starts_with(kRecoveryTraces) || nodes.size() <= kRecoveryNodes) return nodes;
  std::vector<std::string> chosen, others;
  for (const std::string& node : nodes) (failed_.contains(node) ? chosen : others).push_back(node);
  chosen.resize(std::min(chosen.size(), kRecoveryNodes));
  const size_t more = std::min(kRecoveryNodes - chosen.size(), others.size());
  for (size_t i = 0; i < more; ++i) chosen.push_back(others[i * others.size() / more]);
  return chosen;
}

void TracePlan::end_steps(int64_t at_ns, std::vector<TraceWindow>& windows) {
  const Steps steps = *std::exchange(steps_, std::nullopt);
  windows.push_back({steps.first == steps.last
                         ? fmt::format("step-{:08}", steps.first)
                         : fmt::format("steps-{:08}-{:08}", steps.first, steps.last),
                     steps.begin_ns, at_ns});
  // A step that is rolled back and made again is not traced again.
  for (uint64_t step = steps.first; step <= steps.last; ++step) chosen_.erase(step);
}

void TracePlan::end_recovery(int64_t at_ns, std::vector<TraceWindow>& windows) {
  const Recovery recovery = *std::exchange(recovery_, std::nullopt);
  windows.push_back({std::string(kRecoveryTraces) +
                         fmt::format("{:08}-{:04}", recovery.generation, recovery.incident),
                     recovery.begin_ns, at_ns});
}

}  // namespace simplescale
