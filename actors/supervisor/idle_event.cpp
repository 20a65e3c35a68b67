#include "actors/supervisor/idle_event.hpp"

#include <algorithm>

#include "actors/supervisor/decision/rollback.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale::supervisor {

namespace {

job::Fault fault_of(const std::string& name) {
  if (name.empty()) return job::Fault::none;
  if (name == "non_finite") return job::Fault::non_finite;
  if (name == "mismatch") return job::Fault::mismatch;
  if (name == "bad_copy") return job::Fault::bad_copy;
  if (name == "bad_checkpoint") return job::Fault::bad_checkpoint;
  if (name == "bad_disk") return job::Fault::bad_disk;
  if (name == "bad_tokens") return job::Fault::bad_tokens;
  return job::Fault::failed;
}

/// The trainer at fault for a failure that `idle` reports, or "".
std::string suspect_of(const JobSupervisorState& s, const TrainerIdle& idle, int64_t now_ms) {
  const auto& members = s.steps.members();  // by rank
  const auto rank = static_cast<size_t>(idle.suspect_rank);
  const bool newest = idle.generation == job::newest_joined(s.job);
  if (!idle.suspect.empty() || !newest) return idle.suspect;
  if (idle.suspect_rank >= 0 && rank < members.size()) return members[rank].trainer;
  // The deadline of a collective has passed: the rank that reports it first is one of those that
  // wait.
  const auto stall = idle.fault == "failed" ? s.stalls.stall(now_ms, s.job) : std::nullopt;
  return stall && stall->waiting_for.size() == 1 ? stall->waiting_for[0] : "";
}

/// Replaces ranks by names: "group 1: trainer 0: disk full" becomes "n1.0: disk full".
std::string with_names(std::string text, const std::vector<job::Place>& members) {
  for (const job::Place& place : members) {
    const std::string rank =
        "group " + std::to_string(place.group) + ": trainer " + std::to_string(place.shard) + ": ";
    if (const size_t at = text.find(rank); at != std::string::npos)
      return text.replace(at, rank.size(), place.trainer + ": ");
  }
  return text;
}

/// Adds the samples to the reason of a value that is not finite.
std::string with_samples(std::string reason, const std::string& samples) {
  if (!samples.empty())
    reason.insert(std::min(reason.rfind(" is not finite"), reason.size()),
                  " on samples " + samples);
  return reason;
}

}  // namespace

job::TrainerIdle idle_event(const JobSupervisorState& s, const TrainerIdle& idle, int64_t now_ms) {
  job::TrainerIdle event{idle.trainer,
                         idle.generation,
                         idle.shard,
                         idle.held,
                         fault_of(idle.fault),
                         idle.step,
                         suspect_of(s, idle, now_ms),
                         idle.reason,
                         ""};
  if (idle.generation != job::newest_joined(s.job)) return event;
  event.reason = with_names(std::move(event.reason), s.steps.members());
  if (event.fault == job::Fault::non_finite) {
    const std::vector<uint64_t> samples = s.steps.samples(idle.step, event.suspect);
    event.samples = samples_text(samples);
    event.reason = with_samples(std::move(event.reason), event.samples);
    if (s.options.sample_places && !samples.empty())
      event.reason += " (" + s.options.sample_places(samples) + ")";
  }
  return event;
}

}  // namespace simplescale::supervisor
