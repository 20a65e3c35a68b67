// The steps of the current generation until every trainer has reported them, and the lines that
// they become in metrics.jsonl and ledger.jsonl.
//
// Plain data; owned by the supervisor actor, called on its thread. Never touches a file: the actor
// appends the lines that record() returns.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/records_end.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// One line of a file of the run folder.
struct RunLine {
  const char* file;
  nlohmann::json json;
};

/// What trainers reported of one step.
struct ReportedStep {
  StepDone newest;                                       // the newest report
  std::map<std::string, std::vector<uint64_t>> samples;  // by trainer; as in StepDone
  std::map<std::string, double> busy_ms;                 // by trainer
  double first_time = 0;                     // earliest StepDone::time, seconds since the epoch
  std::optional<nlohmann::json> validation;  // validation_of() the line, once it is known
};

class StepLedger {
 public:
  StepLedger() = default;
  /// recorded_step: last step in the run folder's records; none: there are no records yet.
  StepLedger(const Config& config, const Plan& plan, std::optional<uint64_t> recorded_step);

  // --- Generations ---

  /// Training of `generation` by `members` begins after `step`. Unfinished reports are dropped.
  void begin(uint64_t generation, std::vector<job::Place> members, uint64_t step);
  /// Continues a predecessor's generation. Training goes on after the last recorded step, if any.
  /// in_files: the newest step that the files have, and the generation that made it; later than
  /// recorded_step if it was undone.
  void resume(uint64_t generation, std::vector<job::Place> members,
              std::optional<uint64_t> recorded_step, std::optional<HeldStep> in_files = {});
  /// The changes of the learning rate so far.
  void set_rates(std::vector<RateChange> changes);
  /// The trainers of the generation, by group, then shard.
  const std::vector<job::Place>& members() const { return members_; }
  /// The samples that a member, or with "" all members, train in `step`, as in StepDone.
  std::vector<uint64_t> samples(uint64_t step, const std::string& trainer) const;
  /// The step after which the generation began.
  uint64_t begun_at() const { return begun_at_; }

  // --- Reports ---

  /// Takes a trainer's report. False: it has no effect, because it is of another generation (GEN-1)
  /// or of a step that is recorded.
  bool report(const StepDone& done);
  /// Takes the result of a validation. A step that is validated is complete when its result is
  /// known, so that its line has it. Returns another line for the newest recorded step if its first
  /// line lacks the result: a failure had interrupted the validation, which has been repeated.
  std::optional<RunLine> validated(const Validated& result);
  /// What the records have of validations, by step: validation_of() the newest line.
  void set_validations(std::map<uint64_t, nlohmann::json> known) {
    validations_ = std::move(known);
  }
  /// True if the same result of the step is known: each generation validates the step that it
  /// begins with, because a failure may have interrupted its validation. Call it before validated().
  bool knows(const Validated& result) const;
  /// The members that a line of the step has of the result, as in validation_of().
  nlohmann::json members_of(const Validated& result) const;
  /// True if a later step is recorded.
  bool is_past(uint64_t step) const { return recorded_step_ && step < *recorded_step_; }
  /// Removes and returns the oldest step that every member has reported.
  std::optional<ReportedStep> take_complete();
  /// A generation is about to begin at `step`, of which every shard has a copy: every step up to it
  /// is committed. Removes and returns the first of these that is not recorded. Samples of trainers
  /// that died before they reported it follow from the plan; if no trainer reported it, its loss
  /// and gradient norm are NaN.
  std::optional<ReportedStep> take_committed(uint64_t step);
  /// Each step up to this one is recorded, or a trainer has reported it.
  uint64_t reported_up_to() const;
  /// The records go on after `step` where they end later, or nowhere yet. Returns whether that
  /// changed.
  bool rewind(uint64_t step);
  /// Steps up to `step` were undone and count again: takes rewind() back as far as the files have
  /// lines that count in `job`, the state after that decision, or rewinds where lines are of a history
  /// that was left for it (JOB-2). Returns whether that changed anything.
  bool regain(uint64_t step, const job::State& job);
  /// Newest step in metrics.jsonl and ledger.jsonl.
  std::optional<uint64_t> recorded_step() const { return recorded_step_; }
  /// The step after which this supervisor's first line follows; 0 while recorded_step() is none.
  uint64_t first_after() const { return first_after_.value_or(0); }

  /// Updates loss() and tokens_per_second() by a complete step.
  void measure(const ReportedStep& step);
  /// The step's lines; from now on it is recorded.
  std::vector<RunLine> record(const ReportedStep& step);
  /// In nats per token; NaN before this supervisor has seen a complete step.
  double loss() const { return loss_; }
  /// The newest validation loss; NaN before this supervisor has seen one.
  double val_loss() const { return val_loss_; }
  /// The newest validation loss of each source by its name; null without data.blend, or before this
  /// supervisor has seen one.
  nlohmann::json val_losses() const { return by_source(val_sources_); }
  /// The newest scores of train.tasks, as task_json() gives them; null without any.
  const nlohmann::json& tasks() const { return tasks_; }
  /// Of the newest recorded step, seconds since the epoch; 0: this supervisor has recorded none.
  double newest_time() const { return newest_time_; }
  /// From the step before it to that one.
  double newest_step_ms() const { return newest_step_ms_; }
  /// Mean rate of the newest steps of this generation, without validations.
  double tokens_per_second() const { return tokens_per_second_; }
  /// Seconds from `step` to the last step at this rate; null: not known.
  nlohmann::json remaining_s(uint64_t step) const;

  // --- Replicas that differ ---

  /// A trainer whose vote failed had this hash of its shard of the state of `step`. Every trainer
  /// that has computed a hash says so, also if its own vote was aborted because others had found
  /// that the replicas differ.
  void hashed(const std::string& trainer, uint64_t step, uint64_t hash);
  /// Replicas differ in the state of `step`.
  void mismatch(uint64_t step) { differs_ = step; }
  /// A step in which replicas differed has been made again: returns the trainers of this report's
  /// shard whose hash was not the one reported now.
  std::vector<std::string> wrong_states(const StepDone& done);

 private:
  struct Pace {
    double ms = 0, tokens = 0;
  };
  struct Hashed {
    uint32_t shard;
    uint64_t step, hash;
  };
  void set_members(uint64_t generation, std::vector<job::Place> members);
  nlohmann::json metrics_line(const ReportedStep& reports) const;
  nlohmann::json by_source(const std::vector<double>& losses) const;  // null: there are none

  Plan plan_;
  double peak_flops_ = 0;  // of a device; 0: unknown
  bool keeps_ledger_ = true;
  uint64_t generation_ = 0, groups_ = 0;
  std::vector<job::Place> members_;
  std::map<uint64_t, ReportedStep> pending_;  // by step
  std::optional<uint64_t> recorded_step_, first_after_;
  uint64_t recorded_generation_ = 0;  // that made recorded_step_, or a later step that was undone
  std::optional<HeldStep> undone_;    // the newest step in the files, if it is undone
  std::map<std::string, Hashed> hashed_;  // by trainer
  std::optional<uint64_t> differs_;       // the newest step in which replicas differed
  uint64_t begun_at_ = 0;                 // step
  std::deque<Pace> paces_;                // of the newest steps of this generation
  nlohmann::json newest_line_;            // of metrics.jsonl; null: none yet
  double newest_time_ = 0, newest_step_ms_ = 0;
  std::map<uint64_t, nlohmann::json> validations_;  // by step
  double loss_ = std::numeric_limits<double>::quiet_NaN(), val_loss_ = loss_;
  std::vector<double> val_sources_;  // of the newest validation
  nlohmann::json tasks_;
  double tokens_per_second_ = 0;
};

}  // namespace simplescale
