#include "actors/supervisor/idle_event.hpp"

#include "actors/supervisor/decision/rollback.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale::supervisor {

namespace {

/// The name of the trainer with `idle.suspect_rank`, or "".
std::string name_of_rank(const JobSupervisorState& s, const TrainerIdle& idle) {
  const auto& members = s.steps.members();  // by rank
  const auto rank = static_cast<size_t>(idle.suspect_rank);
  return idle.suspect_rank >= 0 && rank < members.size() ? members[rank].trainer : "";
}

/// The trainer at fault for a failure that `idle` reports, or "".
std::string suspect_of(const JobSupervisorState& s, const TrainerIdle& idle, int64_t now_ms) {
  const bool newest = idle.generation == job::newest_joined(s.job);
  if (!idle.suspect.empty() || !newest) return idle.suspect;
  if (const std::string name = name_of_rank(s, idle); !name.empty()) return name;
  // The deadline of a collective has passed: the rank that reports it first is one of those that
  // wait.
  const auto stall = idle.fault == Fault::failed ? s.stalls.stall(now_ms, s.job) : std::nullopt;
  return stall && stall->waiting_for.size() == 1 ? stall->waiting_for[0] : "";
}

}  // namespace

TrainerIdle idle_event(const JobSupervisorState& s, const TrainerIdle& idle, int64_t now_ms) {
  TrainerIdle event = idle;
  event.suspect = suspect_of(s, idle, now_ms);
  if (idle.generation != job::newest_joined(s.job)) return event;
  Reason& reason = event.reason;
  const std::string step = "step " + std::to_string(reason.step) + ": ";
  if (event.fault == Fault::non_finite) event.samples = s.steps.samples(idle.step, event.suspect);
  if (reason.detail.empty()) return event;
  if (event.fault == Fault::non_finite) {
    reason.detail = step + reason.detail;
    if (!event.samples.empty()) reason.detail += " on samples " + samples_text(event.samples);
    reason.text = reason.detail + " is not finite";
    if (s.options.sample_places && !event.samples.empty())
      reason.text += " (" + s.options.sample_places(event.samples) + ")";
  } else if (const std::string name = name_of_rank(s, idle); !name.empty()) {
    reason.text = step + name + ": " + reason.detail;
  }
  return event;
}

}  // namespace simplescale::supervisor
