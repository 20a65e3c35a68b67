// Membership: which nodes are up, suspect, drained or lost, and their diagnoses.
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/restart_budget.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
/// True for a name that belongs to the run, or may.
bool may_join(const State& s, const std::string& name) {
  const auto number = node_number(name);
  return number && *number < s.rules.max_nodes && name == node_name(*number);
}
}  // namespace

void Decider::operator()(const NodeUp& e) {
  Node* node = find_node(e.node);
  const bool joins = !node && admit(e);
  if (joins) node = find_node(e.node);
  if (!node) return;
  const bool known = node->state != NodeState::absent && node->state != NodeState::lost;
  node->address = e.address;
  node->instructions = e.instructions;
  if (s_.instructions == InstructionSet::automatic) use_instructions(e.run_instructions);
  if (known && node->pid == e.pid) {  // the same agent reports to a new supervisor
    // JOB-1: this node has not got this supervisor's order to save what memory holds: order it
    // again.
    if (std::exchange(s_.saving, {}).step > 0) end_generation("nodes to come back");
    if (!node->checking) return;
    add_action(CheckNode{e.node, node->reason});  // the predecessor may not have ordered the check
    node->since_ms = now_;
    return;
  }
  if (known) declare_lost(e.node, {"its agent was restarted"});
  const bool returns = node->state == NodeState::lost;
  node->pid = e.pid;
  node->ended = false;
  node->peer.clear();
  node->answered = 0;
  record("", "node_up", e.node, returns ? "it came back" : joins ? "it joins the running job" : "");
  if (returns)
    suspect_node(e.node, "it came back after it was lost");
  else if (node->leaves)
    drain_node(e.node, "it was removed from the run");
  else
    set_node_state(e.node, NodeState::up, "");
  node->joins = joins && node->state == NodeState::up;
  plan();
}

// JOB-7: the name of a node counts nowhere before this decision.
bool Decider::admit(const NodeUp& e) {
  if (over()) return false;
  if (!may_join(s_, e.node)) {
    add_action(EndNode{e.node, Code::bad_config,
                       "this run has at most " + std::to_string(s_.rules.max_nodes) +
                           " nodes; set a larger cluster.max_nodes when it is started again"});
    return false;
  }
  // JOB-1: if it was removed while it could not be reached, its memory may be needed by now.
  s_.nodes[e.node].leaves =
      std::ranges::count(s_.removed, RemovedAgent{e.node, e.pid, e.address}) > 0;
  s_.node_order.push_back(e.node);
  for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot)
    s_.trainers[trainer_name(e.node, slot)];
  add_action(AdmitNode{e.node});
  return true;
}

void Decider::release_nodes() {
  // Another supervisor may have recorded the first of two steps, and its nodes may be lost by now.
  if (over() || s_.phase != Phase::training || s_.counted_steps < 2) return;
  for (const std::string& name : std::vector(s_.node_order)) {
    const Node& node = s_.nodes.at(name);
    if (!node.leaves || s_.layout.contains(name) || !all_of_node(s_, name, left_its_generation))
      continue;
    s_.removed.push_back({name, node.pid, node.address});
    if (s_.removed.size() > removed_agents_kept) s_.removed.erase(s_.removed.begin());
    record("", "removed", name, node.reason);
    if (is_here(node)) add_action(EndNode{name, Code::ok, "removed: " + node.reason});
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot)
      s_.trainers.erase(trainer_name(name, slot));
    for (auto* list : {&s_.node_order, &s_.to_examine, &s_.examined}) std::erase(*list, name);
    s_.nodes.erase(name);
  }
}

void Decider::operator()(const NodeLost& e) {
  Node* node = find_node(e.node);
  if (!node || node->state == NodeState::absent) return;
  if (node->state != NodeState::lost)
    declare_lost(e.node, e.reason);
  else if (e.reason.kind != ReasonKind::process_ended || std::exchange(node->ended, true))
    return;
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
  } else if (e.drain && !can_spare(s_, e.node)) {
    set_reason(std::string("cannot ") + (e.for_good ? "remove " : "drain ") + e.node +
               ": fewer than " + groups_needed(s_) + " would be left");
  } else if (e.drain && (node->state != NodeState::drained || e.for_good)) {
    node->leaves = e.for_good;
    node->reason = e.reason;
    if (is_here(*node) || !e.for_good) drain_node(e.node, e.reason);
    if (s_.layout.contains(e.node))
      leave_after_step("node " + e.node + (e.for_good ? " is removed" : " is drained"));
  } else if (!e.drain && lacks_instructions(s_, *node)) {
    set_reason(e.node + " cannot train: " + why_unfit(s_, *node));
  } else if (!e.drain && node->state == NodeState::drained) {
    node->failures_ms.clear();
    node->failed.clear();
    node->checking = node->leaves = false;
    std::erase(s_.removed, RemovedAgent{e.node, node->pid, node->address});
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

void Decider::operator()(const DiagnoseRequested& e) {
  if (s_.stop_requested) return set_reason("the run is being stopped");
  if (diagnosing(s_)) return set_reason("a diagnosis is under way");
  for (const std::string& name : e.nodes)
    if (const Node* node = find_node(name); node && node->state == NodeState::up)
      s_.to_examine.push_back(name);
  if (s_.to_examine.empty()) return set_reason("none of these nodes is up");
  record("", "diagnosis", joined(s_.to_examine), e.who);
  if (all_in_generation(s_)) leave_after_step("a diagnosis was requested by " + e.who);
  plan();
  set_reason("a diagnosis of " + joined(e.nodes) + " begins");
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

void Decider::set_node_state(const std::string& name, NodeState state, std::string reason) {
  Node& node = s_.nodes.at(name);
  if (state == NodeState::up && lacks_instructions(s_, node))
    return drain_node(name, why_unfit(s_, node));
  node.state = state;
  node.reason = std::move(reason);
  node.since_ms = now_;
  node.joins = node.joins && state == NodeState::up;
}

void Decider::declare_lost(const std::string& name, const Reason& reason) {
  bool in = false;
  for_each_trainer(s_, name, [&](Trainer& t) {
    in = in || in_generation(t);
    t = {};
  });
  Node& node = s_.nodes.at(name);
  node.peer.clear();
  node.checking = false;
  node.micro_batch_us = 0;
  node.ended = reason.kind == ReasonKind::process_ended;
  record_failure(s_, now_, name);
  set_node_state(name, NodeState::lost, reason.text);
  if (in)
    fence("detect", "node_lost", name, reason);
  else
    record(awaiting_first_step(s_) ? "detect" : "", "node_lost", name, reason);
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

void Decider::use_instructions(InstructionSet of_run) {
  s_.instructions = of_run;
  for (const std::string& name : s_.node_order)
    if (const Node& node = s_.nodes.at(name); node.state == NodeState::up)
      set_node_state(name, NodeState::up, node.reason);  // drains one that lacks them
}

void Decider::choose_instructions() {
  InstructionSet most = InstructionSet::automatic;
  for (const auto& [name, node] : s_.nodes)
    if (is_here(node)) most = std::max(most, node.instructions);
  InstructionSet best = most;
  std::vector<std::string> limits;  // the nodes whose hosts have no better set than `best`
  for (const std::string& name : s_.node_order) {
    const Node& node = s_.nodes.at(name);
    // A host without AVX2 trains with its like alone.
    if (!is_here(node) || !can_use(most, node.instructions)) continue;
    if (node.instructions < best) limits.clear();
    best = std::min(best, node.instructions);
    if (node.instructions == best) limits.push_back(name);
  }
  if (best == InstructionSet::automatic) return;  // GPUs
  record("", "instructions", to_string(best),
         std::string("the best that all hosts have") +
             (best == most ? ""
                           : "; " + joined(limits) + (limits.size() == 1 ? " has" : " have") +
                                 " none better") +
             (s_.has_checkpoint ? "; none are recorded for the steps before" : ""));
  use_instructions(best);
}

void Decider::enforce_restart_budget(const std::string& name) {
  if (std::string why = budget_exceeded(s_, name); !why.empty()) drain_node(name, why);
}

void Decider::suspect_nodes_missing_trainers() {
  const bool expected =
      s_.phase == Phase::recovering ? !all_in_generation(s_) : !s_.paused && !any_in_generation(s_);
  if (!expected || !waited(s_.restart_timeout_ms)) return;
  for (const std::string& name : s_.node_order)
    if (s_.nodes.at(name).state == NodeState::up && s_.layout.contains(name) &&
        !node_is_idle(s_, name))
      suspect_node(name,
                   "its trainers did not restart within " + milliseconds(s_.restart_timeout_ms));
}

void Decider::suspect_nodes_without_checkpoint() {
  const std::vector<std::string> without = nodes_without_checkpoint(s_);
  if (without.empty()) return;
  const std::set<std::string_view> failed(without.begin(), without.end());
  const bool others_can = std::ranges::any_of(s_.nodes, [&](const auto& n) {
    return n.second.state == NodeState::up && s_.layout.contains(n.first) &&
           !failed.contains(n.first);
  });
  if (!others_can) return;
  for (const std::string& name : without) {
    for_each_trainer(s_, name, [](Trainer& t) { t.unreadable = false; });
    record_failure(s_, now_, name);
    if (s_.nodes.at(name).state == NodeState::up)
      suspect_node(name, "it cannot read the checkpoint of step " + number(s_.joined_step));
  }
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

}  // namespace simplescale::job
