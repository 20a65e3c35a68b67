// The effects of events on nodes, copies and generations.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/sentence.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

void Decider::record(std::string phase, std::string kind, std::string subject, std::string reason) {
  if (phase == "detect") s_.incident = true;
  add_action(Record{std::move(phase), std::move(kind), std::move(subject), std::move(reason)});
}

void Decider::begin_wait(std::string what) {
  s_.waiting_since_ms = now_;
  s_.waiting_for = std::move(what);
}

void Decider::set_node_state(const std::string& name, NodeState state, std::string reason) {
  Node& node = s_.nodes.at(name);
  node.state = state;
  node.reason = std::move(reason);
  node.since_ms = now_;
}

void Decider::declare_lost(const std::string& name, const std::string& reason) {
  bool in = false;
  for_each_trainer(name, [&](Trainer& t) {
    in = in || in_generation(t);
    t = {};
  });
  Node& node = s_.nodes.at(name);
  node.peer.clear();
  node.checking = false;
  record_failure(name);
  set_node_state(name, NodeState::lost, reason);
  if (in)
    fence("detect", "node_lost", name, reason);
  else
    record(awaiting_first_step() ? "detect" : "", "node_lost", name, reason);
  // The node may have been about to write a shard, and may come back with its memory.
  if (std::exchange(s_.saving, {}).step > 0) end_generation("nodes to come back");
}

void Decider::suspect_node(const std::string& name, const std::string& reason) {
  set_node_state(name, NodeState::suspect, reason);
  s_.nodes.at(name).checking = true;
  add_action(CheckNode{name, reason});
}

void Decider::drain_node(const std::string& name, const std::string& reason) {
  if (over()) return;  // the failure has ended the run
  set_node_state(name, NodeState::drained, reason);
  record("", "drained", name, reason);
}

void Decider::record_failure(const std::string& subject) {
  auto found = s_.nodes.find(node_of(subject));
  if (found == s_.nodes.end()) return;
  Node& node = found->second;
  node.failed_at_step = s_.committed_step;
  std::vector<int64_t>& failures = node.failures_ms;
  std::erase_if(failures, [&](int64_t at) { return now_ - at > s_.within_ms; });
  // A lost node and then each of its trainers have one cause. If the same trainer fails again
  // before the node has recovered, that is another cause.
  const bool same_cause =
      !node.failed.empty() && !failures.empty() && std::ranges::count(node.failed, subject) == 0;
  if (!same_cause) {
    failures.push_back(now_);
    node.failed.clear();
  }
  node.failed.push_back(subject);
}

void Decider::end_causes() {
  for (auto& [name, node] : s_.nodes)
    if (!node.failed.empty() && node.state == NodeState::up &&
        all_of_node(name, [](const Trainer& t) {
          return t.state != TrainerState::down && t.state != TrainerState::draining;
        }))
      node.failed.clear();
}

void Decider::enforce_restart_budget(const std::string& name) {
  const Node& node = s_.nodes.at(name);
  const size_t failures = node.failures_ms.size();
  if (node.state == NodeState::up && failures > static_cast<size_t>(s_.max_restarts))
    drain_node(name, counted(static_cast<int64_t>(failures), "failure") + " within " +
                         number(static_cast<uint64_t>(s_.within_ms / 1000)) + " s");
}

void Decider::discard_copy(const std::string& trainer, uint64_t step) {
  auto found = s_.trainers.find(trainer);
  if (found != s_.trainers.end())
    std::erase_if(found->second.held, [&](const StateVersion& copy) { return copy.step == step; });
  // The trainer may have sent the copy from the peer store of its node, or from the memory of a
  // trainer of its node that is down.
  auto node = s_.nodes.find(node_of(trainer));
  if (node == s_.nodes.end()) return;
  std::erase_if(node->second.peer, [&](const PeerCopy& copy) { return copy.step == step; });
  for_each_trainer(node->first, [&](Trainer& t) {
    if (t.state == TrainerState::down)
      std::erase_if(t.held, [&](const StateVersion& copy) { return copy.step == step; });
  });
}

void Decider::suspect_step(uint64_t step, uint64_t generation) {
  if (is_suspect(s_, step, generation)) return;
  s_.suspect_steps.push_back({step, generation});
  if (s_.suspect_steps.size() > suspect_steps_kept)
    s_.suspect_steps.erase(s_.suspect_steps.begin());
  if (newest_joined(s_) > generation || s_.committed_step < step) return;
  record("", "steps_undone", number(s_.committed_step - step + 1),
         "replicas computed different states");
  s_.committed_step = step - 1;
}

void Decider::fence(std::string phase, std::string kind, std::string subject, std::string reason) {
  const std::string what = subject.empty() ? reason : subject + ": " + reason;
  record(std::move(phase), kind, subject, reason);
  use_next_number();
  ++s_.cycles;
  s_.leaving = false;
  for (auto& [name, trainer] : s_.trainers) {
    trainer.ready = false;
    if (in_generation(trainer)) trainer.state = TrainerState::draining;
  }
  s_.phase = Phase::recovering;
  begin_wait("all trainers to be idle");
  if (s_.cycles > s_.give_up_after_cycles)
    give_up(Code::gave_up, "The run gave up: " + counted(s_.cycles, "failure") +
                               " in a row without a committed step between them. The last: " +
                               what_failed(kind, subject, reason));
  if (over()) return;
  add_action(Fence{s_.generation, what});
  record("fence", kind, subject, "the next generation is " + number(s_.generation));
  set_reason("all trainers stop after " + what + "; the next generation is " +
             number(s_.generation));
}

void Decider::leave_after_step(std::string reason) {
  if (s_.leaving || s_.stop_requested || !all_members_in(TrainerState::training)) return;
  s_.leaving = true;
  begin_wait("all trainers to leave");
  record("", "leaving", "generation " + number(s_.generation), reason);
  set_reason(reason);
  add_action(Leave{s_.generation, std::move(reason)});
}

void Decider::kill_trainers_ignoring_fence() {
  // This includes trainers that came back in an older generation while the current one ends.
  if ((s_.phase != Phase::recovering && !s_.leaving) || !waited(s_.fence_timeout_ms)) return;
  for (auto& [name, trainer] : s_.trainers) {
    if (trainer.state != TrainerState::draining) continue;
    trainer.state = TrainerState::down;
    record_failure(name);
    const std::string why =
        "it did not leave its generation within " + milliseconds(s_.fence_timeout_ms);
    record("abort", "fence_ignored", name, "killed: " + why);
    add_action(KillTrainer{name, why});
    begin_wait("trainers that were killed");
  }
}

void Decider::suspect_nodes_missing_trainers() {
  const bool expected =
      s_.phase == Phase::recovering ? !all_in_generation() : !s_.paused && !any_in_generation();
  if (!expected || !waited(s_.restart_timeout_ms)) return;
  for (const std::string& name : s_.node_order)
    if (s_.nodes.at(name).state == NodeState::up && s_.layout.contains(name) && !node_is_idle(name))
      suspect_node(name,
                   "its trainers did not restart within " + milliseconds(s_.restart_timeout_ms));
}

void Decider::drain_nodes_with_hung_checks() {
  for (const std::string& name : s_.node_order) {
    Node& node = s_.nodes.at(name);
    if (!node.checking || now_ - node.since_ms <= s_.check_timeout_ms) continue;
    node.checking = false;
    if (node.state == NodeState::suspect)
      drain_node(name, "its diagnosis did not end within " + milliseconds(s_.check_timeout_ms));
  }
}

void Decider::begin_diagnosis() {
  if (s_.to_examine.empty()) return;
  for (const std::string& name : std::exchange(s_.to_examine, {}))
    if (s_.nodes.at(name).state == NodeState::up) s_.examined.push_back(name);
  for (const std::string& name : s_.examined) suspect_node(name, "a diagnosis was requested");
  begin_wait("a diagnosis");
}

void Decider::end_diagnosis() {
  if (s_.examined.empty()) return;
  std::vector<std::string> found;
  for (const std::string& name : s_.examined) {
    const Node& node = s_.nodes.at(name);
    if (node.checking) return;
    if (node.state != NodeState::up)
      found.push_back(name + " is " + to_string(node.state) + ": " + node.reason);
  }
  record("", "diagnosed", joined(s_.examined),
         found.empty() ? "nothing is wrong" : joined(found, "; "));
  s_.examined.clear();
  begin_wait("trainers");
}

void Decider::give_up(Code exit, std::string reason) {
  const std::string step = "step " + number(s_.committed_step);
  if (s_.giving_up) return end_giving_up(step + " could not be saved: " + reason, false);
  if (std::max(s_.committed_step, newest_state().step) <= saved_step())
    return shut_down(exit, reason + advice());
  s_.giving_up = s_.stop_requested = true;
  s_.giving_up_since_ms = now_;
  s_.cycles = 0;  // as many failures end the tries to save
  s_.paused = false;
  s_.to_examine.clear();
  s_.exit = exit;
  s_.exit_reason = std::move(reason);
  record("", "gives_up", "", s_.exit_reason + "; " + step + " is saved first");
}

void Decider::end_giving_up(const std::string& outcome, bool saved) {
  if (!saved && s_.exit == Code::ok) s_.exit = Code::io;  // a user has stopped the run
  shut_down(s_.exit, s_.exit_reason + "; " + outcome + advice());
}

void Decider::end_without_copies() {
  const std::string missing = missing_nodes();
  end_giving_up("step " + number(s_.committed_step) +
                    " could not be saved: no memory holds a copy of every shard" +
                    (missing.empty() ? "" : "; missing: " + missing),
                false);
}

std::string Decider::advice() const {
  if (s_.bad_samples.empty()) return "";
  return "; if these samples are the cause, `resume` goes on without them: --skip-samples=" +
         s_.bad_samples;
}

void Decider::shut_down(Code exit, std::string reason, bool all_steps) {
  if (over()) return;
  const bool good = exit == Code::ok || exit == Code::requeue;
  s_.phase = !good ? Phase::failed : all_steps ? Phase::finished : Phase::stopped;
  record("", to_string(s_.phase), "", reason);
  set_reason(reason);
  add_action(Shutdown{exit, std::move(reason)});
}

}  // namespace simplescale::job
