// Rollbacks: a generation rolls back steps of which a shard has no copy left. A rollback is
// tentative until that generation has made a step: if copies come back before, they count again
// (JOB-1).
#include <algorithm>

#include "actors/supervisor/decision/decider.hpp"

namespace simplescale::job {

void Decider::roll_back_from(uint64_t step) {
  auto& list = s_.rollbacks;
  list.push_back({s_.generation, step, 0, true});
  // If the list is full, merge the two oldest rollbacks. JOB-3 takes precedence over JOB-1: some
  // copies, mostly those older than the last rollbacks_kept beginnings, then count as rolled back
  // although they are not.
  while (list.size() > rollbacks_kept) {
    list[1].generation = std::max(list[0].generation, list[1].generation);
    list[1].step = std::min(list[0].step, list[1].step);
    list[1].since = std::min(list[0].since, list[1].since);
    list[1].tentative = list[0].tentative && list[1].tentative;
    list.erase(list.begin());
  }
}

bool Decider::step_was_made() const {
  const auto made = [&](const auto& copy) {
    return copy.step > s_.joined_step && copy.generation >= s_.rollbacks.back().generation;
  };
  if (s_.rollbacks.empty()) return false;
  for (const auto& [name, node] : s_.nodes)
    if (std::ranges::any_of(node.peer, made)) return true;
  return std::ranges::any_of(s_.trainers, [&](const auto& trainer) {
    return std::ranges::any_of(trainer.second.held, made);
  });
}

Decider::Branches Decider::left_branches() const {
  Branches branches;
  if (step_was_made()) return branches;
  const auto add = [&](const auto& copy) {
    const auto left_it = [&](const Rollback& u) {
      return copy.step >= u.step && reverted(u, copy.generation);
    };
    if (std::ranges::any_of(s_.rollbacks, left_it)) branches.insert(copy.generation);
  };
  for (const auto& [name, node] : s_.nodes) std::ranges::for_each(node.peer, add);
  for (const auto& [name, trainer] : s_.trainers) std::ranges::for_each(trainer.held, add);
  return branches;
}

void Decider::fence_if_newer_state_returned() {
  if (s_.rollbacks.empty() || !s_.rollbacks.back().tentative || s_.leaving) return;
  // A node that is lost and returns repeatedly must not stop the other nodes for ever.
  if (s_.newer_states > s_.max_restarts) return;
  for (const auto& [name, trainer] : s_.trainers)
    if (trainer.state == TrainerState::finished) return;
  // The nodes have not yet told a new supervisor which steps their trainers have made.
  for (const auto& [name, node] : s_.nodes)
    if (node.answered == 0 && is_here(node) && s_.layout.contains(name)) return;
  const Beginning newest = newest_state();
  if (newest.branch == newest_branch || newest.step <= s_.joined_step) return;
  const auto copy = std::ranges::find(newest.copies, newest.step, &AvailableCopy::step);
  ++s_.newer_states;
  // Charge neither this restart nor the node loss that it repairs to the budget.
  s_.cycles = std::max(s_.cycles - 2, -1);
  fence("detect", "newer_state", node_of(copy->source),
        "it holds step " + number(newest.step) + ", and generation " + number(s_.generation) +
            ", which began at step " + number(s_.joined_step) + ", has made no step");
}

void Decider::revert_rollbacks(uint64_t branch) {
  auto& list = s_.rollbacks;
  std::vector<Rollback> again;
  for (Rollback& u : list) {
    if (!reverted(u, branch)) continue;
    // The reverted rollback had itself reverted another one, which counts again.
    if (u.since > 0) again.push_back({u.since, u.step, 0, false});
    u = {s_.generation, u.step, u.generation, true};
  }
  list.insert(std::ranges::find_if(list, &Rollback::tentative), again.begin(), again.end());
}

}  // namespace simplescale::job
