// Collects the reports of the current generation's steps until every trainer has reported a step,
// and makes the step's lines for metrics.jsonl and ledger.jsonl.
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/records_end.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/sample_order.hpp"
#include "runtime/training/router_counts.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// One line of a file of the run folder.
struct RunLine {
  const char* file;
  nlohmann::json json;
};

/// What trainers reported about one step.
struct ReportedStep {
  StepDone newest;                                       // the newest report
  std::map<std::string, std::vector<uint64_t>> samples;  // by trainer; as in StepDone
  // By trainer that has samples: of a micro-batch; without waiting, on CPUs also without what each
  // step takes once.
  std::map<std::string, double> busy_ms;
  double first_time = 0;                     // earliest StepDone::time, seconds since the epoch
  std::optional<nlohmann::json> validation;  // validation_of() the line, once the result is known
  std::vector<ExpertLoad> experts;           // empty without experts, or if nobody could report it
};

class StepLedger {
 public:
  StepLedger() = default;
  /// recorded_step: last step in the run folder's records; none: there are no records yet.
  StepLedger(const Config& config, const Plan& plan, std::optional<uint64_t> recorded_step);

  /// padding_share() of the run, which each line tells; none without data.pack.
  void set_padding(std::optional<double> share) { padding_ = share; }

  // --- Generations ---

  /// Training of `generation` by `members` begins after `step`. weights: as in JoinGeneration. Drops
  /// unfinished reports.
  void begin(uint64_t generation, std::vector<job::Place> members, uint64_t step,
             std::span<const uint32_t> weights = {});
  /// Continues a predecessor's generation. Training continues after recorded_step, if there is one.
  /// in_files: the newest step in the files, and the generation that made it; it is later than
  /// recorded_step if it was rolled back.
  void resume(uint64_t generation, std::vector<job::Place> members,
              std::optional<uint64_t> recorded_step, std::optional<StateVersion> in_files = {},
              std::span<const uint32_t> weights = {});
  /// Sets the changes of the learning rate so far.
  void set_rates(std::vector<RateChange> changes);
  /// The trainers of the generation, by group, then shard.
  const std::vector<job::Place>& members() const { return members_; }
  /// The samples that a member trains in `step`, as in StepDone; of all members if `trainer` is "".
  std::vector<uint64_t> samples(uint64_t step, const std::string& trainer) const;
  /// How many micro-batches a place has in `step`; 0: none, or it is not of this generation.
  uint64_t micro_batches(uint64_t step, const job::Place& place) const {
    const Shares& shares = layout_.shares(step);
    const bool known = place.group < shares.groups() && place.shard < shares.shards();
    return known ? shares.count(place.group, place.shard) : 0;
  }
  /// The step after which the generation began.
  uint64_t begun_at() const { return begun_at_; }

  // --- Reports ---

  /// Takes a trainer's report. Returns false if the report has no effect, because it is of another
  /// generation (GEN-1) or of a step that is recorded.
  bool report(const StepDone& done);
  /// Takes the result of a validation. A step with a validation is complete only with this result,
  /// so that its line has it. Returns another line for the newest recorded step if its first line
  /// lacks the result: a failure had interrupted the validation, and a later generation repeated
  /// it.
  std::optional<RunLine> validated(const Validated& result);
  /// Sets the validations that the records have, by step: validation_of() the newest line.
  void set_validations(std::map<uint64_t, nlohmann::json> known) {
    validations_ = std::move(known);
  }
  /// True if the same result of the step is known: each generation validates the step that it
  /// begins with, because a failure may have interrupted that step's validation. Call it before
  /// validated().
  bool knows(const Validated& result) const;
  /// The members that a line of the step takes from the result, as in validation_of().
  nlohmann::json members_of(const Validated& result) const;
  /// True if a later step is recorded.
  bool is_past(uint64_t step) const { return recorded_step_ && step < *recorded_step_; }
  /// Removes and returns the oldest step that every member has reported.
  std::optional<ReportedStep> take_complete();
  /// A generation is about to begin at `step`, of which every shard has a copy, so every step up to
  /// it is committed. Removes and returns the first of these steps that is not recorded. If
  /// trainers died before they reported it, their samples are taken from the plan; if no trainer
  /// reported it, its loss and gradient norm are NaN.
  std::optional<ReportedStep> take_committed(uint64_t step);
  /// The newest step up to which each step is recorded or was reported by a trainer.
  uint64_t reported_up_to() const;
  /// Makes the records continue after `step`, if they end later or have no step yet. Returns
  /// whether that changed anything.
  bool rewind(uint64_t step);
  /// Steps up to `step` were rolled back and count again: undoes rewind() as far as the files have
  /// lines that count in `job`, the state after that decision; or rewinds if the files have lines
  /// of the branch that was abandoned (JOB-2). Returns whether that changed anything.
  bool regain(uint64_t step, const job::State& job);
  /// Newest step in metrics.jsonl and ledger.jsonl.
  std::optional<uint64_t> recorded_step() const { return recorded_step_; }
  /// The step before this supervisor's first line; 0 while recorded_step() is none.
  uint64_t first_after() const { return first_after_.value_or(0); }

  /// Updates loss() and tokens_per_second() with a complete step.
  void measure(const ReportedStep& step);
  /// Returns the step's lines. From now on the step counts as recorded.
  std::vector<RunLine> record(const ReportedStep& step);
  /// In nats per token; NaN before this supervisor has seen a complete step.
  double loss() const { return loss_; }
  /// The newest validation loss; NaN before this supervisor has seen one.
  double val_loss() const { return val_loss_; }
  /// The newest validation loss of each source by its name; null without data.blend, or before this
  /// supervisor has seen one.
  nlohmann::json val_losses() const { return by_source(val_sources_); }
  /// The newest validation's val_loss_at and val_loss_by_position; null if it has none.
  const nlohmann::json& val_loss_at() const { return val_loss_at_; }
  const nlohmann::json& val_loss_by_position() const { return val_loss_by_position_; }
  /// The newest scores of train.tasks, as task_json() gives them; null if there are none.
  const nlohmann::json& tasks() const { return tasks_; }
  /// Time of the newest recorded step, seconds since the epoch; 0: this supervisor has recorded
  /// none.
  double newest_time() const { return newest_time_; }
  /// Milliseconds from the step before the newest recorded one to that step.
  double newest_step_ms() const { return newest_step_ms_; }
  /// Mean rate of the newest steps of this generation, validations excluded.
  double tokens_per_second() const { return tokens_per_second_; }
  /// Seconds from `step` to the last step at this rate; null: unknown.
  nlohmann::json remaining_s(uint64_t step) const;

  // --- Replicas that differ ---

  /// The trainer's vote on the state of `step` failed, and its shard of that state had this hash.
  /// Every trainer that has computed a hash reports it, even if its own vote was aborted because
  /// other trainers had found that the replicas differ.
  void hashed(const std::string& trainer, uint64_t step, uint64_t hash);
  /// Replicas differ in the state of `step`.
  void mismatch(uint64_t step) { differs_ = step; }
  /// Call when a step in which replicas differed has been made again. Returns the trainers of this
  /// report's shard whose earlier hash differs from the one reported now.
  std::vector<std::string> wrong_states(const StepDone& done);

 private:
  struct Pace {
    double ms = 0, tokens = 0;
  };
  struct Hashed {
    uint32_t shard;
    uint64_t step, hash;
  };
  void set_members(uint64_t generation, std::vector<job::Place> members,
                   std::span<const uint32_t> weights);
  nlohmann::json metrics_line(const ReportedStep& reports) const;
  nlohmann::json by_source(const std::vector<double>& losses) const;  // null: there are none

  Plan plan_;
  double peak_flops_ = 0;  // of a device; 0: unknown
  bool keeps_ledger_ = true;
  std::vector<int64_t> validation_lengths_;
  uint64_t generation_ = 0;
  BatchLayout layout_;  // of the generation
  std::vector<job::Place> members_;
  std::map<uint64_t, ReportedStep> pending_;  // by step
  std::optional<uint64_t> recorded_step_, first_after_;
  uint64_t recorded_generation_ = 0;    // that made recorded_step_, or a later step that was undone
  std::optional<StateVersion> undone_;  // the newest step in the files, if it is undone
  std::map<std::string, Hashed> hashed_;  // by trainer
  std::optional<uint64_t> differs_;       // the newest step in which replicas differed
  uint64_t begun_at_ = 0;                 // step
  std::deque<Pace> paces_;                // of the newest steps of this generation
  nlohmann::json newest_line_;            // of metrics.jsonl; null: none yet
  double newest_time_ = 0, newest_step_ms_ = 0;
  std::map<uint64_t, nlohmann::json> validations_;  // by step
  double loss_ = std::numeric_limits<double>::quiet_NaN(), val_loss_ = loss_;
  std::vector<double> val_sources_;  // of the newest validation
  nlohmann::json val_loss_at_, val_loss_by_position_;
  std::optional<double> padding_;
  nlohmann::json tasks_;
  double tokens_per_second_ = 0;
};

}  // namespace simplescale
