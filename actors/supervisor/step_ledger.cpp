#include "actors/supervisor/step_ledger.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/supervisor/journal.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

json ledger_line(uint64_t generation, uint64_t step, const std::string& trainer,
                 const std::vector<uint64_t>& samples) {
  json runs = json::array();
  for (size_t i = 0; i + 1 < samples.size(); i += 2) runs.push_back({samples[i], samples[i + 1]});
  return {{"step", step},
          {"trainer", trainer},
          {"generation", generation},
          {"samples", std::move(runs)}};
}

}  // namespace

StepLedger::StepLedger(const Config& config, const Plan& plan,
                       std::optional<uint64_t> recorded_step)
    : plan_(plan),
      peak_flops_(config.cluster.peak_flops),
      keeps_ledger_(config.data.ledger),
      recorded_step_(recorded_step) {}

// --- Generations ---

void StepLedger::set_members(uint64_t generation, std::vector<job::Place> members) {
  generation_ = generation;
  members_ = std::move(members);
  groups_ = 0;
  for (const job::Place& place : members_) groups_ = std::max<uint64_t>(groups_, place.group + 1);
}

void StepLedger::begin(uint64_t generation, std::vector<job::Place> members, uint64_t step,
                       int64_t now_ms) {
  set_members(generation, std::move(members));
  pending_.clear();
  begun_at_ = step;
  begun_ms_ = recorded_ms_ = now_ms;
  committed_time_ = 0;
}

void StepLedger::resume(uint64_t generation, std::vector<job::Place> members,
                        std::optional<uint64_t> recorded_step, int64_t now_ms) {
  set_members(generation, std::move(members));
  recorded_step_ = recorded_step;
  begun_at_ = recorded_step.value_or(0);
  begun_ms_ = recorded_ms_ = now_ms;
}

// --- Reports ---

bool StepLedger::report(const StepDone& done) {
  if (done.generation != generation_) return false;                  // GEN-1
  if (recorded_step_ && done.step <= *recorded_step_) return false;  // reported before
  ReportedStep& step = pending_[done.step];
  step.newest = done;
  step.first_time = step.samples.empty() ? done.time : std::min(step.first_time, done.time);
  step.samples[done.trainer] = done.samples;
  step.busy_ms[done.trainer] = done.busy_ms;
  return true;
}

std::optional<ReportedStep> StepLedger::take_complete() {
  // Trainers report their steps in order, so the oldest step is complete first.
  if (pending_.empty() || pending_.begin()->second.samples.size() != members_.size())
    return std::nullopt;
  return std::move(pending_.extract(pending_.begin()).mapped());
}

bool StepLedger::rewind(uint64_t step) {
  if (recorded_step_ && *recorded_step_ <= step) return false;
  recorded_step_ = step;
  return true;
}

std::optional<ReportedStep> StepLedger::take_committed(uint64_t step) {
  if (!recorded_step_ || *recorded_step_ >= step) return std::nullopt;
  const uint64_t next = *recorded_step_ + 1;
  ReportedStep reports;
  if (auto found = pending_.extract(next)) {
    reports = std::move(found.mapped());
  } else {
    reports.newest.generation = generation_;
    reports.newest.step = next;
    reports.newest.loss = reports.newest.grad_norm = std::nan("");
    reports.newest.learning_rate = plan_.learning_rate.at(static_cast<int64_t>(next) - 1);
  }
  for (const job::Place& place : members_)
    if (!reports.samples.contains(place.trainer))
      reports.samples[place.trainer] = samples_of(plan_, groups_, place.group, place.shard, next);
  return reports;
}

void StepLedger::measure(const ReportedStep& step, int64_t now_ms) {
  const auto since_s = static_cast<double>(now_ms - begun_ms_) / 1e3;
  const auto tokens = static_cast<double>(plan_.tokens_per_step);
  if (since_s > 0)
    tokens_per_second_ = tokens * static_cast<double>(step.newest.step - begun_at_) / since_s;
  loss_ = step.newest.loss;
}

std::vector<RunLine> StepLedger::record(const ReportedStep& step, int64_t now_ms) {
  // Trainers' own clocks are preferred: messages are delayed and arrive in bursts.
  const double since_s = step.newest.time - committed_time_;
  const double step_ms = committed_time_ > 0 && since_s > 0
                             ? 1e3 * since_s
                             : static_cast<double>(now_ms - recorded_ms_);
  committed_time_ = step.newest.time;
  recorded_ms_ = now_ms;
  recorded_step_ = step.newest.step;
  std::vector<RunLine> lines = {{"metrics.jsonl", metrics_line(step.newest, step_ms)}};
  if (keeps_ledger_)
    for (const auto& [trainer, samples] : step.samples)
      lines.push_back({"ledger.jsonl",
                       ledger_line(step.newest.generation, step.newest.step, trainer, samples)});
  return lines;
}

json StepLedger::metrics_line(const StepDone& step, double step_ms) const {
  const double rate = tokens_per_second_;
  const double left = static_cast<double>(plan_.max_steps) - static_cast<double>(step.step);
  return {{"time", step.time > 0 ? step.time : wall_time_s()},
          {"step", step.step},
          {"iter", step.step * static_cast<uint64_t>(plan_.accumulation)},
          {"loss", number_or_null(step.loss)},
          {"grad_norm", number_or_null(step.grad_norm)},
          {"lr", step.learning_rate},
          {"step_ms", rounded(step_ms, 0.001)},
          {"tokens", step.step * static_cast<uint64_t>(plan_.tokens_per_step)},
          {"tokens_per_second", rounded(rate, 0.1)},
          {"mfu", peak_flops_ > 0
                      ? number_or_null(mfu(plan_.shape, rate, plan_.topology.world(), peak_flops_))
                      : json(nullptr)},
          {"remaining_s",
           rate > 0 ? rounded(left * static_cast<double>(plan_.tokens_per_step) / rate, 0.1)
                    : json(nullptr)},
          {"generation", step.generation}};
}

// --- Replicas that differ ---

void StepLedger::mismatch(const std::string& trainer, uint64_t step, uint64_t hash) {
  mismatches_[trainer] = {step, hash};
}

std::vector<std::string> StepLedger::wrong_states(const StepDone& done) {
  std::vector<std::string> wrong;
  if (mismatches_.empty() || done.state_hash == 0) return wrong;
  auto shard_of = [&](const std::string& trainer) {
    const auto place = std::ranges::find(members_, trainer, &job::Place::trainer);
    return place == members_.end() ? int64_t{-1} : static_cast<int64_t>(place->shard);
  };
  std::erase_if(mismatches_, [&](const auto& entry) {
    const auto& [trainer, state] = entry;
    if (done.step != state.step + 1 || shard_of(trainer) != shard_of(done.trainer)) return false;
    if (state.hash != done.state_hash) wrong.push_back(trainer);
    return true;
  });
  return wrong;
}

}  // namespace simplescale
