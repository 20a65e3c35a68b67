#include "actors/supervisor/step_ledger.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/supervisor/decision/rollback.hpp"
#include "actors/supervisor/journal.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/training/token_marks.hpp"

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
      validation_lengths_(config.train.validation_lengths),
      recorded_step_(recorded_step),
      first_after_(recorded_step) {}

// --- Generations ---

void StepLedger::set_members(uint64_t generation, std::vector<job::Place> members,
                             std::span<const uint32_t> weights) {
  generation_ = generation;
  members_ = std::move(members);
  uint64_t groups = 1, shards = 1;
  for (const job::Place& place : members_) {
    groups = std::max<uint64_t>(groups, place.group + 1);
    shards = std::max<uint64_t>(shards, place.shard + 1);
  }
  layout_ = batch_layout(plan_, groups, shards, weights);
}

void StepLedger::begin(uint64_t generation, std::vector<job::Place> members, uint64_t step,
                       std::span<const uint32_t> weights) {
  set_members(generation, std::move(members), weights);
  pending_.clear();
  begun_at_ = step;
  paces_.clear();
}

void StepLedger::resume(uint64_t generation, std::vector<job::Place> members,
                        std::optional<uint64_t> recorded_step, std::optional<StateVersion> in_files,
                        std::span<const uint32_t> weights) {
  set_members(generation, std::move(members), weights);
  recorded_step_ = first_after_ = recorded_step;
  recorded_generation_ = in_files ? in_files->generation : 0;
  undone_ = in_files && recorded_step < in_files->step ? in_files : std::nullopt;
  begun_at_ = recorded_step.value_or(0);
}

void StepLedger::set_rates(std::vector<RateChange> changes) {
  if (changes == plan_.learning_rate.changes) return;
  plan_.learning_rate.changes = std::move(changes);
  hashed_.clear();  // the steps are made again with other rates
}

std::vector<uint64_t> StepLedger::samples(uint64_t step, const std::string& trainer) const {
  std::vector<uint64_t> runs;
  for (const job::Place& place : members_) {
    if (!trainer.empty() && place.trainer != trainer) continue;
    const auto more = samples_of(plan_, layout_, place.group, place.shard, step);
    runs.insert(runs.end(), more.begin(), more.end());
  }
  return runs;
}

// --- Reports ---

bool StepLedger::report(const StepDone& done) {
  if (done.generation != generation_) return false;                  // GEN-1
  if (recorded_step_ && done.step <= *recorded_step_) return false;  // reported before
  ReportedStep& step = pending_[done.step];
  step.newest = done;
  step.first_time = step.samples.empty() ? done.time : std::min(step.first_time, done.time);
  step.samples[done.trainer] = done.samples;
  if (!done.router_counts.empty()) step.experts = expert_loads(done.router_counts, plan_.shape);
  uint64_t samples = 0;
  for (size_t run = 0; run + 1 < done.samples.size(); run += 2) samples += done.samples[run + 1];
  const auto micro_batches =
      static_cast<double>(samples) / static_cast<double>(plan_.micro_batch_size);
  const double busy_ms = done.compute_ms > 0 ? done.compute_ms : done.busy_ms;
  if (samples > 0) step.busy_ms[done.trainer] = busy_ms / micro_batches;
  return true;
}

std::optional<RunLine> StepLedger::validated(const Validated& result) {
  const json members = members_of(result);
  if (members.contains("val_loss")) {
    val_loss_ = result.loss, val_sources_ = result.sources;
    val_loss_at_ = member_of(members, "val_loss_at");
    val_loss_by_position_ = member_of(members, "val_loss_by_position");
  }
  if (members.contains("tasks")) tasks_ = members["tasks"];
  json& known = validations_[result.step];
  known.update(members);
  if (const auto found = pending_.find(result.step); found != pending_.end())
    found->second.validation = members;
  if (!newest_line_.is_object() || newest_line_["step"] != result.step ||
      !validation_of(newest_line_).empty())
    return std::nullopt;
  newest_line_.update(members);
  newest_line_["generation"] = result.generation;
  return RunLine{"metrics.jsonl", newest_line_};
}

json StepLedger::members_of(const Validated& result) const {
  json members = json::object();
  const bool loss_due = !result.targets.empty() || !std::isnan(result.loss);
  if (loss_due) members["val_loss"] = number_or_null(result.loss);
  if (json sources = by_source(result.sources); !sources.is_null())
    members["val_losses"] = std::move(sources);
  const size_t lengths = std::min(result.lengths.size(), validation_lengths_.size());
  for (size_t i = 0; i < lengths; ++i)
    members["val_loss_at"][std::to_string(validation_lengths_[i])] =
        number_or_null(result.lengths[i]);
  for (size_t i = 0; i < result.positions.size(); ++i)
    members["val_loss_by_position"][std::to_string(first_position(i))] =
        number_or_null(result.positions[i]);
  if (!result.tasks.empty()) members["tasks"] = task_json(result.tasks);
  return members;
}

json StepLedger::by_source(const std::vector<double>& losses) const {
  const std::vector<std::string>& names = plan_.mixture.names;
  json by_name;
  for (size_t i = 0; i < std::min(names.size(), losses.size()); ++i)
    by_name[names[i]] = number_or_null(losses[i]);
  return by_name;
}

bool StepLedger::knows(const Validated& result) const {
  const auto found = validations_.find(result.step);
  if (found == validations_.end()) return false;
  json known = found->second;
  known.update(members_of(result));  // of a task that is no longer scored
  return known == found->second;
}

std::optional<ReportedStep> StepLedger::take_complete() {
  // Each trainer reports its steps in order, so the oldest step is complete first.
  if (pending_.empty()) return std::nullopt;
  const ReportedStep& oldest = pending_.begin()->second;
  if (oldest.samples.size() != members_.size() || (oldest.newest.validates && !oldest.validation))
    return std::nullopt;
  return std::move(pending_.extract(pending_.begin()).mapped());
}

bool StepLedger::rewind(uint64_t step) {
  if (recorded_step_ && *recorded_step_ <= step) return false;
  if (!undone_ && recorded_step_) undone_ = StateVersion{*recorded_step_, recorded_generation_};
  recorded_step_ = step;
  if (!first_after_) first_after_ = step;
  return true;
}

bool StepLedger::regain(uint64_t step, const job::State& job) {
  if (!recorded_step_) return false;
  uint64_t count = job::committed_of(job, *recorded_step_, recorded_generation_);
  if (undone_) count = std::max(count, job::committed_of(job, undone_->step, undone_->generation));
  count = std::min(step, count);
  if (count <= *recorded_step_) return rewind(count);
  recorded_step_ = count;
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
      reports.samples[place.trainer] = samples_of(plan_, layout_, place.group, place.shard, next);
  return reports;
}

uint64_t StepLedger::reported_up_to() const {
  uint64_t step = recorded_step_.value_or(0);
  while (pending_.contains(step + 1)) ++step;
  return step;
}

void StepLedger::measure(const ReportedStep& step) {
  constexpr size_t kIntervals = 20;
  loss_ = step.newest.loss;
  if (!(step.newest.interval_ms > 0)) return;
  paces_.push_back(
      {step.newest.interval_ms, static_cast<double>(plan_.tokens_of(step.newest.step))});
  if (paces_.size() > kIntervals) paces_.pop_front();
  Pace all;
  for (const Pace& pace : paces_) all.ms += pace.ms, all.tokens += pace.tokens;
  tokens_per_second_ = 1e3 * all.tokens / all.ms;
}

std::vector<RunLine> StepLedger::record(const ReportedStep& step) {
  recorded_step_ = step.newest.step;
  recorded_generation_ = step.newest.generation;
  undone_.reset();
  newest_step_ms_ = step.newest.interval_ms;
  newest_time_ = step.newest.time > 0 ? step.newest.time : wall_time_s();
  newest_line_ = metrics_line(step);
  std::vector<RunLine> lines = {{"metrics.jsonl", newest_line_}};
  if (!keeps_ledger_) return lines;
  const auto& changes = plan_.learning_rate.changes;
  const auto change = std::ranges::find(changes, step.newest.step, &RateChange::step);
  for (const auto& [trainer, samples] : step.samples) {
    json line = ledger_line(step.newest.generation, step.newest.step, trainer, samples);
    if (change != changes.end()) line["learning_rate"] = change->peak;
    lines.push_back({"ledger.jsonl", std::move(line)});
  }
  return lines;
}

json StepLedger::remaining_s(uint64_t step) const {
  if (!(tokens_per_second_ > 0)) return nullptr;
  const auto last = static_cast<uint64_t>(plan_.max_steps);
  const uint64_t left = plan_.tokens(last) - plan_.tokens(std::min(step, last));
  return rounded(static_cast<double>(left) / tokens_per_second_, 0.1);
}

json StepLedger::metrics_line(const ReportedStep& reports) const {
  const StepDone& step = reports.newest;
  // Use the trainer's own clock: messages are delayed, they arrive in bursts after a recovery or a
  // failover, and the clocks of hosts differ. No interval: no trainer has reported the step.
  const bool timed = step.interval_ms > 0;
  const double rate =
      timed ? 1e3 * static_cast<double>(plan_.tokens_of(step.step)) / step.interval_ms : 0;
  // Those of the configured layout, or more that have joined.
  const int trainers = std::max(plan_.topology.world(), static_cast<int>(members_.size()));
  json line = {{"time", step.time > 0 ? step.time : wall_time_s()},
               {"step", step.step},
               {"iter", plan_.iters(plan_.batch.samples(step.step))},
               {"loss", number_or_null(step.loss)},
               {"grad_norm", number_or_null(step.grad_norm)},
               {"lr", step.learning_rate},
               {"step_ms", timed ? rounded(step.interval_ms, 0.001) : json(nullptr)},
               {"tokens", plan_.tokens(step.step)},
               {"tokens_per_second", timed ? rounded(rate, 0.1) : json(nullptr)},
               {"mfu", timed && peak_flops_ > 0
                           ? number_or_null(mfu(plan_.shape, rate, trainers, peak_flops_))
                           : json(nullptr)},
               {"remaining_s", remaining_s(step.step)},
               {"generation", step.generation}};
  if (padding_) line["padding"] = rounded(*padding_, 1e-6);
  if (!reports.experts.empty()) line["experts"] = json_of(reports.experts);
  if (reports.validation) line.update(*reports.validation);
  return line;
}

// --- Replicas that differ ---

void StepLedger::hashed(const std::string& trainer, uint64_t step, uint64_t hash) {
  const auto place = std::ranges::find(members_, trainer, &job::Place::trainer);
  if (place != members_.end()) hashed_[trainer] = {place->shard, step, hash};
}

std::vector<std::string> StepLedger::wrong_states(const StepDone& done) {
  std::vector<std::string> wrong;
  if (hashed_.empty() || done.state_hash == 0) return wrong;
  const auto place = std::ranges::find(members_, done.trainer, &job::Place::trainer);
  if (place == members_.end()) return wrong;
  std::erase_if(hashed_, [&](const auto& entry) {
    const auto& [trainer, state] = entry;
    if (done.step > state.step + 1) return true;
    if (done.step != state.step + 1 || state.shard != place->shard) return false;
    if (differs_ == state.step && state.hash != done.state_hash) wrong.push_back(trainer);
    return true;
  });
  return wrong;
}

}  // namespace simplescale
