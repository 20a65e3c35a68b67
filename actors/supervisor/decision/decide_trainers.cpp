// What trainers and agents report of their processes, their generation and their memory.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/restart_budget.hpp"
#include "actors/supervisor/decision/rollback.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale::job {

namespace {
// So many generations that fail because of the same copy tell that it is not what its agent reports.
constexpr int copy_tries = 3;
// So many tell that no generation can begin with the step. By default, a run does not give up before.
constexpr int step_tries = 4;
}  // namespace

void Decider::operator()(const TrainerUp& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  if (e.generation != 0 && e.generation == s_.generation && in_generation(*trainer)) {
    trainer->pid = e.pid;  // a supervisor that took over adopts it
    trainer->address = e.data_address;
    trainer->held = e.held;
    return;
  }
  const bool replaced = in_generation(*trainer);
  // The same process may have sent this report before it received the order to join.
  const bool ordered =
      trainer->pid == e.pid && (replaced || trainer->state == TrainerState::draining);
  *trainer = {.state = TrainerState::idle,
              .pid = e.pid,
              .address = e.data_address,
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
  if (node_is_idle(s_, node_of(e.trainer))) plan();  // otherwise nothing has changed for the plan
}

void Decider::operator()(const TrainerDown& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  // The trainer is down already, after an early death notice or a fence: this event tells how the
  // process ended.
  if (trainer->state == TrainerState::down) {
    record("", "trainer_ended", e.trainer, e.reason);
    if (e.restarting) return;
    drain_node(node_of(e.trainer), e.reason.text);
    return plan();
  }
  const bool in = in_generation(*trainer);
  trainer->state = TrainerState::down;
  record_failure(s_, now_, e.trainer);
  if (in)
    fence("detect", "trainer_down", e.trainer, e.reason);
  else
    record(awaiting_first_step(s_) ? "detect" : "", "trainer_down", e.trainer, e.reason);
  if (!e.restarting) drain_node(node_of(e.trainer), e.reason.text);
  enforce_restart_budget(node_of(e.trainer));
  plan();
}

void Decider::agent_failed(const TrainerIdle& e) {
  if (e.fault == Fault::bad_copy) bad_copy(e);
  const bool current = e.generation == s_.generation && all_in_generation(s_);  // GEN-1
  if (!current || !awaiting_first_step(s_)) return;
  if (e.fault == Fault::bad_copy) record_failure(s_, now_, e.trainer);
  fence("detect", to_string(e.fault), e.trainer, e.reason);
}

void Decider::operator()(const TrainerIdle& e) {
  if (find_node(e.trainer)) return agent_failed(e);
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer) return;
  if (trainer->state == TrainerState::down && e.generation + 1 >= s_.generation) {
    trainer->held = e.held;  // its agent reports
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
  trainer->held = e.held;
  if (trainer->state == TrainerState::idle) {  // it only sent copies to other trainers
    plan();
    return;
  }
  trainer->state = TrainerState::idle;
  if (s_.leaving && !any_in_generation(s_)) begin_wait("nodes");  // the wait to leave is over
  if (e.fault == Fault::mismatch && e.step > 0)
    suspect_step(e.step, e.generation, "replicas computed different states");
  if (e.fault == Fault::bad_checkpoint) skip_checkpoint(e.step, e.reason.text);
  if (e.fault == Fault::bad_disk) {
    trainer->unreadable = true;
    if (!current) record("", "bad_disk", e.trainer, e.reason);
  }
  if (e.fault == Fault::bad_copy) {
    bad_copy(e);
    if (!current) record("", "bad_copy", e.suspect, e.reason);
  }
  if (current && !(s_.leaving && e.fault == Fault::none)) {
    const bool wrong_state = e.fault == Fault::mismatch || e.fault == Fault::bad_copy;
    if (wrong_state && !e.suspect.empty()) record_failure(s_, now_, e.suspect);
    // All ranks find these two faults at the same time, so the first to report is not at fault.
    const bool of_all = e.fault == Fault::mismatch || e.fault == Fault::non_finite;
    std::string subject = e.suspect.empty() && !of_all ? e.trainer : e.suspect;
    if (e.fault == Fault::bad_checkpoint) subject = "step-" + number(e.step);
    if (e.fault == Fault::non_finite) s_.bad_samples = samples_text(e.samples);
    Reason reason = e.reason;
    if (e.fault == Fault::mismatch) reason.step = e.step;
    fence("detect", to_string(e.fault), subject, std::move(reason));
  }
  if (unknown) {
    s_.generation = e.generation + 1;
    fence("detect", "unknown_generation", e.trainer,
          "it has left its generation for " + number(s_.generation) +
              ", which this supervisor did not begin");
  }
  // Each generation would read these tokens again. Another trainer may have reported them first.
  if (e.fault == Fault::bad_tokens && !over() && !s_.giving_up)
    give_up(Code::bad_data, e.reason.text);
  // So would each generation get this order; but groups of another size may get another one.
  if (e.fault == Fault::bad_order && !over() && !s_.giving_up &&
      s_.rules.size_of(s_.layout) == s_.rules.domain_nodes)
    give_up(Code::internal,
            "the supervisor's order for " + e.trainer + " is wrong: " + e.reason.text);
  plan();
}

void Decider::operator()(const TrainerReady& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer || e.generation != s_.generation) return;
  trainer->ready = true;
  if (!all_members(s_, [](const Trainer& t) { return t.ready; })) return;
  if (awaiting_first_step(s_)) begin_wait("the first step");
  if (s_.incident) record("heal", "state_restored", "", "step " + number(s_.joined_step));
}

void Decider::operator()(const TrainerHung& e) {
  Trainer* trainer = find_trainer(e.trainer);
  if (!trainer || trainer->state != TrainerState::training || e.generation != s_.generation)
    return;  // GEN-1
  trainer->state = TrainerState::down;
  record_failure(s_, now_, e.trainer);
  fence("detect", "trainer_hung", e.trainer, e.reason);
  if (over()) return;
  add_action(KillTrainer{e.trainer, e.reason});
  enforce_restart_budget(node_of(e.trainer));
  plan();
}

void Decider::discard_copy(const std::string& trainer, uint64_t step) {
  auto found = s_.trainers.find(trainer);
  if (found != s_.trainers.end())
    std::erase_if(found->second.held, [&](const StateCopy& copy) { return copy.step == step; });
  // The trainer may have sent the copy from the peer store of its node, or from the memory of a
  // trainer of its node that is down.
  auto node = s_.nodes.find(node_of(trainer));
  if (node == s_.nodes.end()) return;
  std::erase_if(node->second.peer, [&](const StateCopy& copy) { return copy.step == step; });
  for_each_trainer(s_, node->first, [&](Trainer& t) {
    if (t.state == TrainerState::down)
      std::erase_if(t.held, [&](const StateCopy& copy) { return copy.step == step; });
  });
}

void Decider::bad_copy(const TrainerIdle& e) {
  discard_copy(e.suspect, e.step);
  auto bad = std::ranges::find_if(s_.bad_copies, [&](const BadCopy& copy) {
    return copy.source == e.suspect && copy.step == e.step;
  });
  if (bad == s_.bad_copies.end())
    bad = s_.bad_copies.insert(bad, {.source = e.suspect, .step = e.step});
  if (e.generation <= bad->generation) return;  // another trainer has reported it
  bad->generation = e.generation;
  if (++bad->times == step_tries)
    suspect_step(e.step, e.generation, "no generation could begin with it: " + e.reason.text);
}

void Decider::discard_bad_copies() {
  for (const BadCopy& bad : s_.bad_copies)
    if (bad.times >= copy_tries) discard_copy(bad.source, bad.step);
}

void Decider::suspect_step(uint64_t step, uint64_t generation, const std::string& why) {
  if (is_suspect(s_, step, generation)) return;
  s_.suspect_steps.push_back({step, generation});
  if (s_.suspect_steps.size() > suspect_steps_kept)
    s_.suspect_steps.erase(s_.suspect_steps.begin());
  if (newest_joined(s_) > generation || s_.committed_step < step) return;
  record("", "steps_undone", number(s_.committed_step - step + 1), why,
         s_.committed_step - step + 1);
  s_.committed_step = step - 1;
}

void Decider::kill_trainers_ignoring_fence() {
  // This includes trainers that came back in an older generation while the current one ends.
  if ((s_.phase != Phase::recovering && !s_.leaving) || !waited(s_.fence_timeout_ms)) return;
  for (auto& [name, trainer] : s_.trainers) {
    if (trainer.state != TrainerState::draining) continue;
    trainer.state = TrainerState::down;
    record_failure(s_, now_, name);
    const std::string why =
        "it did not leave its generation within " + milliseconds(s_.fence_timeout_ms);
    record("abort", "fence_ignored", name, "killed: " + why);
    add_action(KillTrainer{name, {why}});
    begin_wait("trainers that were killed");
  }
}

}  // namespace simplescale::job
