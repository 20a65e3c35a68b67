// Committed steps and checkpoints.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/balance.hpp"
#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/restart_budget.hpp"
#include "actors/supervisor/decision/rollback.hpp"

namespace simplescale::job {

namespace {
constexpr size_t older_checkpoints_kept = 64;

void keep_newest(std::vector<uint64_t>& older) {
  if (older.size() > older_checkpoints_kept)
    older.erase(older.begin(), older.end() - older_checkpoints_kept);
}
}  // namespace

void Decider::operator()(const StepCommitted& e) {
  if (e.generation != s_.generation) return;  // GEN-1
  s_.committed_step = std::max(s_.committed_step, e.step);
  settle_rollbacks(s_);
  ++s_.counted_steps;
  s_.cycles = s_.newer_states = 0;
  s_.proven_size = s_.rules.size_of(s_.layout);
  s_.failed_sizes.erase(s_.proven_size);
  s_.bad_samples.clear();
  s_.bad_copies.clear();
  forget_old_failures(s_);
  if (s_.phase == Phase::recovering || s_.phase == Phase::starting) {
    if (s_.incident) record("resume", "committed", "", "step " + number(e.step));
    s_.incident = false;
    s_.phase = s_.stop_requested ? Phase::stopping : Phase::training;
  }
}

void Decider::operator()(const SpeedsMeasured& e) {
  if (!s_.balance || e.generation != s_.generation) return;  // GEN-1
  for (const auto& [name, us] : e.micro_batch_us)
    if (Node* node = find_node(name); node && s_.layout.contains(name)) node->micro_batch_us = us;
  if (s_.phase != Phase::training || now_ < s_.balance_after_ms) return;
  if (const std::string why = why_share_anew(s_, e.stragglers); !why.empty()) leave_after_step(why);
  if (s_.leaving) s_.balance_after_ms = now_ + s_.balance_pause_ms;
}

void Decider::operator()(const TrainerFinished& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer || e.generation != s_.generation || !in_generation(*trainer)) return;
  trainer->state = TrainerState::finished;
  trainer->step = e.step;
  s_.leaving = false;  // nobody leaves after the last step; a trainer missing in it has failed
  // Only an order to stop ends training before the last step. The predecessor gave that order, and
  // died before it replicated the decision.
  if (e.step < s_.max_steps && !s_.stop_requested)
    request_stop({Code::ok, "stopped by an order of an earlier supervisor"}, false);
  if (!all_in_generation(s_))
    return fence("detect", to_string(Fault::none), "", "a trainer is missing in the last step");
  begin_wait("the last checkpoint to be saved");
  finish_if_saved();
}

void Decider::operator()(const CheckpointWritten& e) {
  if (!trusted(s_, e.step, e.generation)) return;
  if (e.step > s_.publishing.step) s_.publishing = {e.step, e.generation};
}

void Decider::operator()(const CheckpointSaved& e) {
  // A rollback decided since then may cover this step.
  if (set_aside(s_, e.step, e.generation) || !trusted(s_, e.step, e.generation))
    return (*this)(CheckpointFailed{
        e.step, "its step was undone while the checkpoint was published", e.generation});
  auto& older = s_.older_checkpoints;
  if (e.step >= s_.publishing.step) s_.publishing = {};
  if (!s_.has_checkpoint || e.step > s_.checkpoint_step) {
    if (s_.has_checkpoint) older.push_back(s_.checkpoint_step);
    s_.checkpoint_step = e.step;
    s_.has_checkpoint = s_.had_checkpoint = true;
  }
  keep_newest(older);
  record("", "checkpoint_saved", "step-" + number(e.step), "");
  add_action(PruneCheckpoints{s_.checkpoint_step});
  if (s_.saving.step > 0 && e.step == s_.saving.step)
    return end_giving_up("step " + number(e.step) + " was saved", true);
  finish_if_saved();
}

void Decider::operator()(const CheckpointsLeft& e) {
  s_.older_checkpoints.clear();
  for (const uint64_t step : e.steps)
    if (s_.has_checkpoint && step < s_.checkpoint_step) s_.older_checkpoints.push_back(step);
  keep_newest(s_.older_checkpoints);
  if (std::ranges::find(e.steps, s_.checkpoint_step) == e.steps.end())
    skip_checkpoint(s_.checkpoint_step, "it is damaged, or gone from the disk");
}

void Decider::operator()(const CheckpointFailed& e) {
  if (e.step == s_.publishing.step && e.generation == s_.publishing.generation) s_.publishing = {};
  record("", "checkpoint_failed", "step-" + number(e.step), e.reason);
  if (e.generation != s_.generation) return;  // GEN-1: a newer generation saves that step again
  // JOB-1: the save of an older step may fail later. Only a failure of the newest step is kept: if
  // it is the last step, it is saved again.
  if (!s_.failed_checkpoint_reason.empty() && e.step < s_.failed_checkpoint) return;
  s_.failed_checkpoint = e.step;
  s_.failed_checkpoint_reason = e.reason;
  if (std::exchange(s_.saving, {}).step > 0)  // a copy may be damaged: agents report again
    return end_generation("the disk: step " + number(e.step) + " could not be saved: " + e.reason);
  finish_if_saved();
}

void Decider::skip_checkpoint(uint64_t step, const std::string& reason) {
  if (!s_.has_checkpoint || s_.checkpoint_step != step) return;
  record("", "checkpoint_skipped", "step-" + number(step),
         reason + (s_.older_checkpoints.empty() ? "; there is no older checkpoint"
                                                : "; the next older checkpoint is used"),
         step);
  s_.has_checkpoint = !s_.older_checkpoints.empty();
  s_.checkpoint_step = s_.has_checkpoint ? s_.older_checkpoints.back() : 0;
  if (s_.has_checkpoint) s_.older_checkpoints.pop_back();
}

}  // namespace simplescale::job
