#include "actors/supervisor/decision/stall.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/words.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::job {

namespace {

constexpr size_t kRecentSteps = 16, kFewSteps = 3;  // kFewSteps: with fewer, there is no limit
constexpr int64_t kFreshMs = 2'000;                 // older reports are ignored
constexpr int64_t kSilentMs = 1'000;                // without a message for so long, it is silent
constexpr int64_t kSlowSteps = 3, kHungSteps = 10;
constexpr size_t kNames = 3;  // the most names in a sentence

/// True if the trainer waits for something that no other trainer provides.
bool waits_alone(const TrainerProgress& a) {
  return a.waiting && (a.phase == StepPhase::data || a.phase == StepPhase::copy);
}

}  // namespace

std::string Stall::names() const {
  return waiting_for.size() <= kNames ? joined(waiting_for)
                                      : std::to_string(waiting_for.size()) + " trainers";
}

std::string Stall::sentence() const {
  const std::string since = "no step for " + std::to_string(since_ms / 1000) + " s, ";
  if (waiting_for.empty())
    return since + "all trainers wait in collectives" + place_in_step(phase, block) +
           ": is the network slow?";
  if (silent)
    return since + "waiting for " + names() + ", which " +
           (waiting_for.size() == 1 ? "does" : "do") + " not answer";
  return since + "waiting for " + names() + place_in_step(phase, block);
}

void StallWatch::begin() {
  committed_ms_.reset();
  first_asked_ms_.reset();
  asked_ms_.reset();
  reported_.clear();
}

void StallWatch::committed(int64_t now_ms) {
  if (committed_ms_) steps_ms_.push_back(now_ms - *committed_ms_);
  if (steps_ms_.size() > kRecentSteps) steps_ms_.pop_front();
  begin();
  committed_ms_ = now_ms;
}

bool StallWatch::stalled(int64_t now_ms, const State& job) const {
  if (!committed_ms_ || steps_ms_.size() < kFewSteps) return false;
  if (job.phase != Phase::training && job.phase != Phase::stopping) return false;
  std::deque<int64_t> sorted = steps_ms_;
  std::ranges::sort(sorted);
  if (now_ms - *committed_ms_ <= std::max(kStallMs, kSlowSteps * sorted[sorted.size() / 2]))
    return false;
  return std::ranges::all_of(places(job.rules, job.layout), [&](const Place& place) {
    return job.trainers.at(place.trainer).state == TrainerState::training;
  });
}

bool StallWatch::ask(int64_t now_ms, const State& job) {
  if ((asked_ms_ && now_ms - *asked_ms_ < kAskMs) || !stalled(now_ms, job)) return false;
  asked_ms_ = now_ms;
  if (!first_asked_ms_) first_asked_ms_ = now_ms;
  return true;
}

void StallWatch::report(int64_t now_ms, const TrainerProgress& progress) {
  reported_[progress.trainer] = {progress, now_ms};
}

const TrainerProgress* StallWatch::fresh(int64_t now_ms, const State& job,
                                         const std::string& trainer) const {
  const auto found = reported_.find(trainer);
  if (found == reported_.end() || found->second.progress.generation != job.generation ||
      now_ms - found->second.at_ms > kFreshMs || found->second.progress.silent_ms > kSilentMs)
    return nullptr;
  return &found->second.progress;
}

std::optional<Stall> StallWatch::stall(int64_t now_ms, const State& job) const {
  if (!first_asked_ms_ || !stalled(now_ms, job)) return {};
  std::vector<std::string> silent, computing, alone;
  const TrainerProgress *computes = nullptr, *waits = nullptr, *any = nullptr;
  for (const Place& place : places(job.rules, job.layout)) {
    const TrainerProgress* a = fresh(now_ms, job, place.trainer);
    if (!a) {
      silent.push_back(place.trainer);
      continue;
    }
    // A validation takes as long as many steps.
    if (a->phase == StepPhase::validation && a->still_ms < kStallMs) return {};
    any = a;
    if (!a->waiting) {
      computing.push_back(place.trainer);
      if (!computes) computes = a;
    } else if (waits_alone(*a)) {
      alone.push_back(place.trainer);
      if (!waits) waits = a;
    }
  }
  Stall stall{.since_ms = now_ms - *committed_ms_};
  const TrainerProgress* first = any;
  if (!silent.empty()) {
    if (now_ms - *first_asked_ms_ < kSilentMs) return {};  // the reports are on their way
    stall.waiting_for = std::move(silent);
    stall.silent = true;
    return stall;
  }
  if (computes)
    stall.waiting_for = std::move(computing), first = computes;
  else if (waits)
    stall.waiting_for = std::move(alone), first = waits;
  stall.phase = first->phase;
  stall.block = first->block;
  return stall;
}

std::optional<TrainerHung> StallWatch::hung(int64_t now_ms, const State& job) const {
  if (reported_.empty() || !stalled(now_ms, job)) return {};
  const int64_t limit = std::max(kHangMs, kHungSteps * *std::ranges::max_element(steps_ms_));
  const TrainerProgress* alone = nullptr;
  size_t waiting = 0;
  for (const Place& place : places(job.rules, job.layout)) {
    const TrainerProgress* a = fresh(now_ms, job, place.trainer);
    if (!a || a->phase == StepPhase::validation || waits_alone(*a)) return {};
    if (a->waiting) {
      if (a->still_ms <= limit / 2) return {};  // it has just begun to wait
      ++waiting;
    } else if (std::exchange(alone, a)) {
      return {};
    }
  }
  if (!alone || waiting == 0 || alone->stuck_ms <= limit) return {};
  return TrainerHung{alone->trainer, job.generation,
                     reason_of({.kind = ReasonKind::hung,
                                .number = static_cast<int32_t>(waiting),
                                .ms = alone->stuck_ms,
                                .step = job.committed_step + 1,
                                .phase = alone->phase,
                                .block = alone->block})};
}

}  // namespace simplescale::job
