// One function for each event. Effects on nodes and generations are in decide_effects.cpp, the
// choice of the next generation is in decide_plan.cpp, functions of the state are in
// decide_state.cpp.
#include "actors/supervisor/decision/decide.hpp"

#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
constexpr size_t older_checkpoints_kept = 64;
// Reason for a stop that only trainers know, because no supervisor has recorded it. An agent may
// report the true reason and exit code later.
constexpr const char* unrecorded_stop = "stopped by an order of an earlier supervisor";
constexpr int64_t first_step_factor = 30;  // a first step may take this many times join_timeout_ms

/// The kind of the event in events.jsonl.
const char* event_kind(Fault fault) {
  switch (fault) {
    case Fault::none:
      return "left";
    case Fault::failed:
      return "step_failed";
    case Fault::non_finite:
      return "non_finite";
    case Fault::mismatch:
      return "mismatch";
    case Fault::bad_copy:
      return "bad_copy";
    case Fault::bad_checkpoint:
      return "bad_checkpoint";
    case Fault::bad_disk:
      return "bad_disk";
    case Fault::bad_tokens:
      return "bad_tokens";
  }
  return "?";
}

void keep_newest(std::vector<uint64_t>& older) {
  if (older.size() > older_checkpoints_kept)
    older.erase(older.begin(), older.end() - older_checkpoints_kept);
}

}  // namespace

// --- Nodes ---

void Decider::operator()(const NodeUp& e) {
  Node* node = find_node(e.node);
  if (!node) return;
  const bool known = node->state != NodeState::absent && node->state != NodeState::lost;
  node->address = e.address;
  if (known && node->pid == e.pid) {  // the same agent reports to a new supervisor
    // JOB-1: this node has not got this supervisor's order to save what memory holds: order it
    // again.
    if (std::exchange(s_.saving, {}).step > 0) end_generation("nodes to come back");
    if (!node->checking) return;
    add_action(CheckNode{e.node, node->reason});  // the predecessor may not have ordered the check
    node->since_ms = now_;
    return;
  }
  if (known) declare_lost(e.node, "its agent was restarted");
  const bool returns = node->state == NodeState::lost;
  node->pid = e.pid;
  node->peer.clear();
  node->answered = 0;
  record("", "node_up", e.node, returns ? "it came back" : "");
  if (returns)
    suspect_node(e.node, "it came back after it was lost");
  else
    set_node_state(e.node, NodeState::up, "");
  plan();
}

void Decider::operator()(const NodeLost& e) {
  Node* node = find_node(e.node);
  if (!node || node->state == NodeState::absent || node->state == NodeState::lost) return;
  declare_lost(e.node, e.reason);
  plan();
}

void Decider::operator()(const NodeChecked& e) {
  Node* node = find_node(e.node);
  if (!node || !node->checking) return;
  node->checking = false;
  record("", e.ok ? "check_passed" : "check_failed", e.node, e.reason);
  if (node->state != NodeState::suspect) return;
  if (e.ok) {
    set_node_state(e.node, NodeState::up, "");
    enforce_restart_budget(e.node);  // trainers may have failed while it was suspect
  } else {
    drain_node(e.node, "it failed its diagnosis: " + e.reason);
  }
  plan();
}

void Decider::operator()(const DrainRequested& e) {
  Node* node = find_node(e.node);
  if (!node) {
    set_reason("there is no node " + e.node);
  } else if (e.drain && !can_spare(e.node)) {
    set_reason("cannot drain " + e.node + ": fewer than " + groups_needed() + " would be left");
  } else if (e.drain && node->state != NodeState::drained) {
    drain_node(e.node, e.reason);
    if (s_.layout.contains(e.node)) leave_after_step("node " + e.node + " is drained");
  } else if (!e.drain && node->state == NodeState::drained) {
    node->failures_ms.clear();
    node->failed.clear();
    node->checking = false;
    record("", "undrained", e.node, e.reason);
    set_node_state(e.node, NodeState::up, "");
  }
  plan();
}

void Decider::operator()(const PeerCopies& e) {
  Node* node = find_node(e.node);
  if (!node) return;
  node->peer = e.copies;
  if (e.fence <= node->answered) return;
  node->answered = e.fence;
  plan();
}

// --- Trainers ---

void Decider::operator()(const TrainerUp& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  if (e.generation != 0 && e.generation == s_.generation && in_generation(*trainer)) {
    trainer->pid = e.pid;  // a supervisor that took over adopts it
    trainer->address = e.address;
    trainer->held = e.held;
    return;
  }
  const bool replaced = in_generation(*trainer);
  // The same process may have sent this report before it received the order to join.
  const bool ordered =
      trainer->pid == e.pid && (replaced || trainer->state == TrainerState::draining);
  *trainer = {.state = TrainerState::idle,
              .pid = e.pid,
              .address = e.address,
              .shard = e.shard,
              .held = e.held,
              .generation = std::max(ordered ? trainer->generation : 0, e.generation)};
  if (e.generation >= std::max<uint64_t>(s_.generation, 1)) {  // unknown to this supervisor
    s_.generation = e.generation;
    trainer->state = TrainerState::training;
    fence("detect", "unknown_generation", e.trainer,
          "it trains in generation " + number(e.generation) +
              ", which this supervisor did not begin");
  } else {
    // The trainer is in an older generation, and was or will be ordered to leave it.
    if (e.generation != 0 || ordered) trainer->state = TrainerState::draining;
    if (replaced)
      fence("detect", "trainer_replaced", e.trainer,
            "its process was replaced and is not in the current generation");
  }
  record("", "trainer_up", e.trainer, "");
  if (node_is_idle(node_of(e.trainer))) plan();  // otherwise nothing has changed for the plan
}

void Decider::operator()(const TrainerDown& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  // The trainer is down already, after an early death notice or a fence: this event tells how the
  // process ended.
  if (trainer->state == TrainerState::down) {
    record("", "trainer_ended", e.trainer, e.reason);
    if (e.restarting) return;
    drain_node(node_of(e.trainer), e.reason);
    return plan();
  }
  const bool in = in_generation(*trainer);
  trainer->state = TrainerState::down;
  record_failure(e.trainer);
  if (in)
    fence("detect", "trainer_down", e.trainer, e.reason);
  else
    record(awaiting_first_step() ? "detect" : "", "trainer_down", e.trainer, e.reason);
  if (!e.restarting) drain_node(node_of(e.trainer), e.reason);
  enforce_restart_budget(node_of(e.trainer));
  plan();
}

void Decider::agent_failed(const TrainerIdle& e) {
  if (e.fault == Fault::bad_copy) discard_copy(e.suspect, e.step);
  const bool current = e.generation == s_.generation && all_in_generation();  // GEN-1
  if (!current || !awaiting_first_step()) return;
  if (e.fault == Fault::bad_copy) record_failure(e.trainer);
  fence("detect", event_kind(e.fault), e.trainer, e.reason);
}

void Decider::operator()(const TrainerIdle& e) {
  if (find_node(e.trainer)) return agent_failed(e);
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  if (trainer->state == TrainerState::down && e.generation + 1 >= s_.generation) {
    trainer->shard = e.shard;  // its agent reports
    trainer->held = e.held;
    trainer->generation = 0;
    plan();
    return;
  }
  const bool current = trainer->state == TrainerState::training && e.generation == s_.generation;
  // The predecessor ended that generation, and died before it replicated the decision.
  const bool unknown = in_generation(*trainer) && e.generation > s_.generation;
  // GEN-1: an answer is stale if it is older than the trainer's generation or than the last fence.
  const bool answers =
      (trainer->state == TrainerState::draining && e.generation >= trainer->generation) ||
      (trainer->state == TrainerState::idle && e.generation + 1 >= s_.generation);
  if (!current && !answers && !unknown) return;
  trainer->shard = e.shard;
  trainer->held = e.held;
  if (trainer->state == TrainerState::idle) {  // it only sent copies to other trainers
    plan();
    return;
  }
  trainer->state = TrainerState::idle;
  if (s_.leaving && !any_in_generation()) begin_wait("nodes");  // the wait to leave is over
  if (e.fault == Fault::mismatch && e.step > 0) suspect_step(e.step, e.generation);
  if (e.fault == Fault::bad_checkpoint) skip_checkpoint(e.step, e.reason);
  if (e.fault == Fault::bad_disk) {
    trainer->unreadable = true;
    if (!current) record("", "bad_disk", e.trainer, e.reason);
  }
  if (e.fault == Fault::bad_copy) {
    discard_copy(e.suspect, e.step);
    if (!current) record("", "bad_copy", e.suspect, e.reason);
  }
  if (current && !(s_.leaving && e.fault == Fault::none)) {
    const bool wrong_state = e.fault == Fault::mismatch || e.fault == Fault::bad_copy;
    if (wrong_state && !e.suspect.empty()) record_failure(e.suspect);
    // All ranks find these two faults at the same time, so the first to report is not at fault.
    const bool of_all = e.fault == Fault::mismatch || e.fault == Fault::non_finite;
    std::string subject = e.suspect.empty() && !of_all ? e.trainer : e.suspect;
    if (e.fault == Fault::bad_checkpoint) subject = "step-" + number(e.step);
    if (e.fault == Fault::non_finite) s_.bad_samples = e.samples;
    fence("detect", event_kind(e.fault), subject, e.reason);
  }
  if (unknown) {
    s_.generation = e.generation + 1;
    fence("detect", "unknown_generation", e.trainer,
          "it has left its generation for " + number(s_.generation) +
              ", which this supervisor did not begin");
  }
  // Each generation would read these tokens again. Another trainer may have reported them first.
  if (e.fault == Fault::bad_tokens && !over() && !s_.giving_up) give_up(Code::bad_data, e.reason);
  plan();
}

void Decider::operator()(const TrainerReady& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer || e.generation != s_.generation) return;
  trainer->ready = true;
  if (!all_members([](const Trainer& t) { return t.ready; })) return;
  if (awaiting_first_step()) begin_wait("the first step");
  if (s_.incident) record("heal", "state_restored", "", "step " + number(s_.joined_step));
}

void Decider::operator()(const Suspected& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  const std::string node = node_of(e.trainer);
  record("", "suspected", e.trainer, e.reason);
  if (s_.nodes.at(node).state != NodeState::up) return;
  suspect_node(node, e.reason);
  if (s_.layout.contains(node)) leave_after_step(e.trainer + " is suspected: " + e.reason);
  plan();
}

void Decider::operator()(const TrainerHung& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer || trainer->state != TrainerState::training || e.generation != s_.generation)
    return;  // GEN-1
  trainer->state = TrainerState::down;
  record_failure(e.trainer);
  fence("detect", "trainer_hung", e.trainer, e.reason);
  if (over()) return;
  add_action(KillTrainer{e.trainer, e.reason});
  enforce_restart_budget(node_of(e.trainer));
  plan();
}

// --- Progress ---

void Decider::operator()(const StepCommitted& e) {
  if (e.generation != s_.generation) return;  // GEN-1
  s_.committed_step = std::max(s_.committed_step, e.step);
  settle_rollbacks(s_);
  s_.cycles = s_.newer_states = 0;
  s_.bad_samples.clear();
  for (auto& [name, node] : s_.nodes)
    if (!node.failures_ms.empty() && s_.layout.contains(name) &&
        s_.committed_step >= node.failed_at_step + s_.budget_steps)
      node.failures_ms.clear();
  if (s_.phase == Phase::recovering || s_.phase == Phase::starting) {
    if (s_.incident) record("resume", "committed", "", "step " + number(e.step));
    s_.incident = false;
    s_.phase = s_.stop_requested ? Phase::stopping : Phase::training;
  }
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
    (*this)(StopRequested{Code::ok, unrecorded_stop});
  if (!all_in_generation())
    return fence("detect", event_kind(Fault::none), "", "a trainer is missing in the last step");
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

// --- Requests ---

void Decider::operator()(const StopRequested& e) {
  if (e.now) {
    shut_down(e.exit, e.reason);
  } else if (!s_.stop_requested || s_.exit_reason == unrecorded_stop) {
    s_.stop_requested = true;
    s_.paused = false;
    s_.to_examine.clear();
    s_.exit = e.exit;
    s_.exit_reason = e.reason;
    record("", "stop_requested", "", e.reason);
    // No state exists yet that could be saved.
    if (s_.phase == Phase::starting && s_.generation == 0)
      return shut_down(e.exit, e.reason + " before the first step");
    if (s_.phase == Phase::training) {
      s_.phase = Phase::stopping;
      begin_wait("the step in progress");
    }
    if (all_in_generation() && !s_.leaving) add_action(StopAtStep{e.reason});
    plan();
  }
}

void Decider::operator()(const PauseRequested& e) {
  if (s_.stop_requested) return set_reason("the run is being stopped");
  if (s_.paused == e.pause)
    return set_reason(e.pause ? "the run is already paused" : "the run is not paused");
  s_.paused = e.pause;
  record("", e.pause ? "paused" : "resumed", "", e.who);
  if (e.pause && all_in_generation()) leave_after_step("paused by " + e.who);
  if (!e.pause && !any_in_generation()) begin_wait("nodes");
  plan();
}

void Decider::operator()(const DiagnoseRequested& e) {
  if (s_.stop_requested) return set_reason("the run is being stopped");
  if (diagnosing(s_)) return set_reason("a diagnosis is under way");
  for (const std::string& name : e.nodes)
    if (const Node* node = find_node(name); node && node->state == NodeState::up)
      s_.to_examine.push_back(name);
  if (s_.to_examine.empty()) return set_reason("none of these nodes is up");
  record("", "diagnosis", joined(s_.to_examine), e.who);
  if (all_in_generation()) leave_after_step("a diagnosis was requested by " + e.who);
  plan();
  set_reason("a diagnosis of " + joined(e.nodes) + " begins");
}

void Decider::request_rate(const SetRequested& e) {
  if (std::string why = rate_refused(s_, e.value); !why.empty()) return set_reason(std::move(why));
  s_.rates.requested = e.value;
  record("", "set", e.key, shortest(e.value) + " by " + e.who);
  if (all_in_generation()) leave_after_step(e.key + " is changed by " + e.who);
  plan();
  set_reason(e.key + " = " + shortest(e.value) + " from the next step on");
}

void Decider::operator()(const SetRequested& e) {
  if (e.key == "train.learning_rate") return request_rate(e);
  const int64_t per_domain = s_.rules.groups_per_domain();
  const int64_t least = e.key == "supervision.max_restarts" ? 0 : 1;
  if (!(e.value >= static_cast<double>(least) && e.value <= 1e9))
    return set_reason(e.key + " must be at least " + std::to_string(least));
  const auto value = static_cast<int64_t>(e.value);
  const auto count = static_cast<int>(std::min<int64_t>(value, 1'000'000));
  if (e.key == "supervision.max_restarts")
    s_.max_restarts = count;
  else if (e.key == "supervision.within_s")
    s_.within_ms = value * 1000;
  else if (e.key == "supervision.give_up_after_cycles")
    s_.give_up_after_cycles = count;
  else if (e.key == "cluster.join_timeout_ms")
    s_.join_timeout_ms = value;
  else if (e.key != "cluster.min_groups")
    return set_reason(e.key + " cannot be changed during the run");
  else if (value > s_.rules.domains * per_domain)
    return set_reason(e.key + " must be at most " + std::to_string(s_.rules.domains * per_domain) +
                      ", the number of groups");
  else
    s_.rules.min_domains = static_cast<int>((value + per_domain - 1) / per_domain);
  record("", "set", e.key, std::to_string(value) + " by " + e.who);
  set_reason(e.key + " = " + std::to_string(value));
  plan();
}

void Decider::operator()(const Tick&) {
  if ((s_.giving_up && now_ - s_.giving_up_since_ms > s_.save_timeout_ms) ||
      (s_.saving.step > 0 && waited(s_.save_timeout_ms)))
    return end_giving_up("step " + number(s_.committed_step) + " could not be saved within " +
                             milliseconds(s_.save_timeout_ms),
                         false);
  kill_trainers_ignoring_fence();
  suspect_nodes_missing_trainers();
  drain_nodes_with_hung_checks();
  if (all_members_in(TrainerState::finished)) {
    if (last_save_failed()) {
      if (waited(disk_retry_ms)) save_again();
    } else if (waited(s_.save_timeout_ms))
      shut_down(Code::io, "waited " + milliseconds(s_.save_timeout_ms) + " for " + s_.waiting_for);
    return;
  }
  // Steps may be long. A trainer's node checks whether the trainer makes progress.
  const bool ready = all_members([](const Trainer& t) { return t.ready; });
  if (awaiting_first_step() && all_in_generation() &&
      waited(ready ? first_step_factor * s_.join_timeout_ms : s_.join_timeout_ms)) {
    std::string late;
    for (const Place& p : places(s_.rules, s_.layout))
      if (!s_.trainers.at(p.trainer).ready) {
        late += (late.empty() ? "" : ", ") + p.trainer;
        add_action(KillTrainer{p.trainer, "it did not restore its state in time"});
      }
    fence("detect", "no_first_step", late,
          "generation " + number(s_.generation) + " committed no step in time");
  }
  plan();
  leave_to_grow();
  if (over() || s_.stop_requested || s_.paused || !s_.examined.empty() || !awaiting_first_step() ||
      all_in_generation() || !waited(s_.join_timeout_ms))
    return;
  const bool drained = std::ranges::any_of(
      s_.nodes, [](const auto& n) { return n.second.state == NodeState::drained; });
  give_up(drained ? Code::gave_up : Code::requeue,
          "There were not enough nodes for " + groups_needed() + " within " +
              milliseconds(s_.join_timeout_ms) + "; missing: " + missing_nodes());
  plan();  // fewer nodes suffice to save
}

Decision decide(int64_t now_ms, State& state, const Event& event, bool more) {
  Decider decider(now_ms, state, more);
  if (!decider.over()) std::visit(decider, event);
  decider.plan_if_due();
  decider.end_causes();
  return decider.take();
}

}  // namespace simplescale::job
