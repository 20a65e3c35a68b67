#include "actors/supervisor/decision/rollback.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace simplescale::job {

bool is_suspect(const State& state, uint64_t step, uint64_t generation) {
  return std::ranges::any_of(state.suspect_steps, [&](const SuspectStep& d) {
    return d.step == step && d.generation >= generation;
  });
}

bool undoes(const Rollback& u, uint64_t generation) {
  return generation >= u.since && generation < u.generation;
}

bool reverted(const Rollback& u, uint64_t branch) {
  return u.tentative && undoes(u, branch);
}

bool undone(const State& state, uint64_t step, uint64_t generation, uint64_t branch) {
  return std::ranges::any_of(state.rollbacks, [&](const Rollback& u) {
    return step >= u.step && undoes(u, generation) != reverted(u, branch);
  });
}

bool set_aside(const State& state, uint64_t step, uint64_t generation) {
  return std::ranges::any_of(state.rollbacks, [&](const Rollback& u) {
    return step >= u.step && generation < (u.since > 0 ? u.since : u.generation);
  });
}

bool trusted(const State& state, uint64_t step, uint64_t generation, uint64_t branch) {
  return !undone(state, step, generation, branch) && !is_suspect(state, step, generation);
}

void settle_rollbacks(State& state) {
  std::vector<Rollback> kept;
  for (Rollback& rollback : state.rollbacks) {
    rollback.tentative = false;
    std::erase_if(kept, [&](const Rollback& older) {  // the newer rollback covers it
      return older.generation <= rollback.generation && older.step >= rollback.step &&
             older.since >= rollback.since;
    });
    kept.push_back(rollback);
  }
  state.rollbacks = std::move(kept);
}

void note_lost_rollbacks(State& state) {
  const uint64_t known = state.rollbacks.empty() ? 0 : state.rollbacks.back().generation;
  if (known >= state.generation_floor) return;  // this supervisor has begun a generation
  std::map<uint64_t, uint64_t> held;            // by generation: the oldest step that it made
  const auto add = [&](const StateCopy& copy) {
    if (copy.generation <= known || copy.generation > state.generation_floor) return;
    if (copy.begun || copy.step == 0) return;  // older copies of that step have its bits
    uint64_t& oldest = held.try_emplace(copy.generation, copy.step).first->second;
    oldest = std::min(oldest, copy.step);
  };
  for (const auto& [name, node] : state.nodes) std::ranges::for_each(node.peer, add);
  for (const auto& [name, trainer] : state.trainers) std::ranges::for_each(trainer.held, add);
  for (const auto& [generation, oldest] : held) {
    settle_rollbacks(state);
    state.rollbacks.push_back({generation, oldest});
    state.joined_step = oldest - 1;
  }
}

uint64_t newest_joined(const State& state) {
  // Trainers of a lost node are missing in the list, so also look at the newest rollback.
  uint64_t newest = state.rollbacks.empty() ? 0 : state.rollbacks.back().generation;
  for (const auto& [name, trainer] : state.trainers) newest = std::max(newest, trainer.generation);
  return newest;
}

void roll_back_from(State& s, uint64_t step) {
  auto& list = s.rollbacks;
  list.push_back({s.generation, step, 0, true});
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

bool step_was_made(const State& s) {
  const auto made = [&](const auto& copy) {
    return copy.step > s.joined_step && copy.generation >= s.rollbacks.back().generation;
  };
  if (s.rollbacks.empty()) return false;
  for (const auto& [name, node] : s.nodes)
    if (std::ranges::any_of(node.peer, made)) return true;
  return std::ranges::any_of(s.trainers, [&](const auto& trainer) {
    return std::ranges::any_of(trainer.second.held, made);
  });
}

Branches left_branches(const State& s) {
  Branches branches;
  if (step_was_made(s)) return branches;
  const auto add = [&](const auto& copy) {
    const auto left_it = [&](const Rollback& u) {
      return copy.step >= u.step && reverted(u, copy.generation);
    };
    if (std::ranges::any_of(s.rollbacks, left_it)) branches.insert(copy.generation);
  };
  for (const auto& [name, node] : s.nodes) std::ranges::for_each(node.peer, add);
  for (const auto& [name, trainer] : s.trainers) std::ranges::for_each(trainer.held, add);
  return branches;
}

void revert_rollbacks(State& s, uint64_t branch) {
  auto& list = s.rollbacks;
  std::vector<Rollback> again;
  for (Rollback& u : list) {
    if (!reverted(u, branch)) continue;
    // The reverted rollback had itself reverted another one, which counts again.
    if (u.since > 0) again.push_back({u.since, u.step, 0, false});
    u = {s.generation, u.step, u.generation, true};
  }
  list.insert(std::ranges::find_if(list, &Rollback::tentative), again.begin(), again.end());
}

uint64_t committed_of(const State& state, uint64_t step, uint64_t generation) {
  for (const Rollback& u : state.rollbacks) {
    if (generation >= u.generation) continue;
    // JOB-2: no step is recorded of the generation that began with this rollback. The newest
    // rollback began with joined_step. An older one began with u.step or the step before; which one
    // is unknown.
    const bool newest = &u == &state.rollbacks.back();
    if (newest || generation >= u.since)
      step = std::min(step, newest ? state.joined_step : u.step - std::min<uint64_t>(u.step, 1));
  }
  const bool gone = std::ranges::any_of(state.suspect_steps, [&](const SuspectStep& d) {
    return d.step <= step && d.generation >= generation;
  });
  return gone ? std::min(step, state.committed_step) : step;
}

std::optional<uint64_t> recorded_of(const State& state, const std::optional<StateVersion>& last,
                                    std::optional<uint64_t> said) {
  if (last) return committed_of(state, last->step, last->generation);
  if (newest_joined(state) == 0) return std::nullopt;
  // The files have no whole step. Trainers report again the steps that they made in this
  // generation.
  return std::min(said.value_or(state.joined_step), state.joined_step);
}

}  // namespace simplescale::job
